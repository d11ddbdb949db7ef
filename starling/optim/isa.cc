#include "starling/optim/isa.h"

namespace starling {

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas{Isa::kBaseline};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) isas.push_back(Isa::kAvx2);
  if (__builtin_cpu_supports("avx512f")) isas.push_back(Isa::kAvx512);
#endif
  return isas;
}

Isa best_isa() {
  return supported_isas().back();
}

}  // namespace starling
