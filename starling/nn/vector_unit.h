// on_vector_unit(work): runs a loop compiled for this processor's vector unit, with fused multiply-adds. `work` is a lambda marked
// STARLING_ROWS, and what it calls is always_inline, so that the compiler makes one copy of the loop for each unit.
#pragma once

#define STARLING_ROWS __attribute__((always_inline))

namespace starling {

#if defined(__x86_64__)
template <typename Work>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"))) void on_avx512(
    const Work& work) {
  work();
}

template <typename Work>
__attribute__((target("avx2,fma"))) void on_avx2(const Work& work) {
  work();
}
#endif

template <typename Work>
void on_vector_unit(const Work& work) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return on_avx512(work);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return on_avx2(work);
#endif
  work();
}

}  // namespace starling
