// The kernel of one instruction set for a type and an operation; private to reduce_kernels*.cc.
#pragma once

#include "starling/comm/reduce_kernels.h"

namespace starling {

// job.op is anything but kAvg; bitwise for integers only.
using ReduceKernel = void (*)(const Reduction& job);

ReduceKernel reduce_kernel_portable(DataType type, ReduceOp op, bool two_sources);
ReduceKernel reduce_kernel_avx2(DataType type, ReduceOp op, bool two_sources);
ReduceKernel reduce_kernel_avx512(DataType type, ReduceOp op, bool two_sources);

// Whether a core reads and writes two pages side by side faster than one after the other. Intel's fetch ahead within a page only, so
// that of two streams twice as much is under way (all-reduce of 1 MB in windows: 34–48 against 50 µs); AMD's Zen 4 loses (21 against 16).
bool two_pages_at_once();

}  // namespace starling
