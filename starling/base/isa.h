// The instruction sets that kernels are compiled for. The choice is made at run time.
#pragma once

#include <vector>

namespace starling {

// kAvx2 includes FMA. kAvx512 includes the extensions BW, DQ and VL.
enum class Isa { kBaseline, kAvx2, kAvx512 };

// The widest instruction set that this processor and operating system support.
Isa best_isa();
// All supported instruction sets, kBaseline first.
std::vector<Isa> supported_isas();

}  // namespace starling
