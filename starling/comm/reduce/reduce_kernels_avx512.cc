// The reduction kernels for AVX-512.
#include <cstdint>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "starling/comm/reduce/reduce_kernels_select.h"

#pragma GCC diagnostic ignored "-Wpsabi"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2")
namespace starling {
namespace {
namespace avx512_loops {
#include "starling/comm/reduce/reduce_loop.inc"
}  // namespace avx512_loops
}  // namespace

ReduceKernel reduce_kernel_avx512(DataType type, ReduceOp op, bool two_sources) {
  return two_sources ? avx512_loops::select_type<2>(type, op) : avx512_loops::select_type<0>(type, op);
}
}  // namespace starling
#pragma GCC pop_options
#else
namespace starling {
ReduceKernel reduce_kernel_avx512(DataType type, ReduceOp op, bool two_sources) {
  return reduce_kernel_portable(type, op, two_sources);
}
}  // namespace starling
#endif
