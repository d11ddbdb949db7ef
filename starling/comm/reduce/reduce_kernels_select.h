// The kernels of each instruction set, by type and operation. Only reduce_kernels*.cc include this file.
#pragma once

#include "starling/comm/reduce/reduce_kernels.h"

namespace starling {

// A kernel carries out one operation on elements of one type. reduce() replaces kAvg before it calls a
// kernel. Bitwise operations are for integers only. `two_sources`: the kernel gets exactly two sources.
using ReduceKernel = void (*)(const Reduction& job);

// Returns the portable kernel.
ReduceKernel reduce_kernel_portable(DataType type, ReduceOp op, bool two_sources);
// Returns the AVX2 kernel, or the portable kernel if the build is not for x86-64.
ReduceKernel reduce_kernel_avx2(DataType type, ReduceOp op, bool two_sources);
// Returns the AVX-512 kernel, or the portable kernel if the build is not for x86-64.
ReduceKernel reduce_kernel_avx512(DataType type, ReduceOp op, bool two_sources);

}  // namespace starling
