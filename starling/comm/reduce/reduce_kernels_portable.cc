// The reduction kernels for processors without AVX2.
#include <cstdint>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "starling/comm/reduce/reduce_kernels_select.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace starling {
namespace {
namespace portable_loops {
#include "starling/comm/reduce/reduce_loop.inc"
}  // namespace portable_loops
}  // namespace

ReduceKernel reduce_kernel_portable(DataType type, ReduceOp op, bool two_sources) {
  return two_sources ? portable_loops::select_type<2>(type, op) : portable_loops::select_type<0>(type, op);
}
}  // namespace starling
