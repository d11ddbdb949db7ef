// dispatch(isa, work): runs work() compiled for `isa`. `work` is a callable whose operator() and all that it
// calls are STARLING_INLINE, so that the compiler builds one copy of the loop for each vector unit. Include
// it only in files that cmake/layers.cmake compiles with the flags of kernels (-O3, no contraction).
#pragma once

#include "starling/optim/isa.h"

#define STARLING_INLINE inline __attribute__((always_inline))

namespace starling {

template <typename Work>
void run_baseline(const Work& work) {
  work();
}

#if defined(__x86_64__)
template <typename Work>
__attribute__((target("avx2"))) void run_avx2(const Work& work) {
  work();
}

template <typename Work>
__attribute__((target("avx512f,prefer-vector-width=512"))) void run_avx512(const Work& work) {
  work();
}
#endif

template <typename Work>
void dispatch(Isa isa, const Work& work) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return run_avx512(work);
  if (isa == Isa::kAvx2) return run_avx2(work);
#endif
  run_baseline(work);
}

}  // namespace starling
