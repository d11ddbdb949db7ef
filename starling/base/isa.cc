#include "starling/base/isa.h"

namespace starling {

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas{Isa::kBaseline};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isas.push_back(Isa::kAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    isas.push_back(Isa::kAvx512);
  }
#endif
  return isas;
}

Isa best_isa() {
  static const Isa best = supported_isas().back();
  return best;
}

}  // namespace starling
