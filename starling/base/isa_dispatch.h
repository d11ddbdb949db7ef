// Runs a loop that is compiled once for each instruction set (isa.h).
//
// `work` is a callable. Its operator() and all functions that it calls are STARLING_INLINE. The compiler
// therefore builds one copy of the loop for each instruction set.
#pragma once

#include "starling/base/isa.h"

#define STARLING_INLINE inline __attribute__((always_inline))
// The attribute of a lambda that is handed to dispatch() or dispatch_fused(), or is called in such a lambda.
#define STARLING_INLINE_LAMBDA __attribute__((always_inline))

namespace starling {

// run_baseline() and the functions below call work(). Each is compiled for one instruction set. dispatch()
// and dispatch_fused() choose among them.
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

template <typename Work>
__attribute__((target("avx2,fma"))) void run_avx2_fused(const Work& work) {
  work();
}

template <typename Work>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"))) void
run_avx512_fused(const Work& work) {
  work();
}
#endif

// Calls work(), compiled for `isa` without fused multiply-adds. All instruction sets then give equal bits.
// Call it only in files that cmake/layers.cmake compiles without contraction (-ffp-contract=off).
template <typename Work>
void dispatch(Isa isa, const Work& work) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return run_avx512(work);
  if (isa == Isa::kAvx2) return run_avx2(work);
#endif
  run_baseline(work);
}

// Like dispatch(), with fused multiply-adds. The results of different instruction sets differ by rounding.
template <typename Work>
void dispatch_fused(Isa isa, const Work& work) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return run_avx512_fused(work);
  if (isa == Isa::kAvx2) return run_avx2_fused(work);
#endif
  run_baseline(work);
}

}  // namespace starling
