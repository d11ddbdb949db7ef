// The kernel of one instruction set for a type and an operation; private to reduce_kernels*.cc.
#pragma once

#include "starling/comm/reduce_kernels.h"

namespace starling {

// job.op is anything but kAvg; bitwise for integers only.
using ReduceKernel = void (*)(const Reduction& job);

ReduceKernel reduce_kernel_portable(DataType type, ReduceOp op, bool two_sources);
ReduceKernel reduce_kernel_avx2(DataType type, ReduceOp op, bool two_sources);
ReduceKernel reduce_kernel_avx512(DataType type, ReduceOp op, bool two_sources);

}  // namespace starling
