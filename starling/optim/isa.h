// The vector units that the kernels of this layer are compiled for; chosen at run time.
#pragma once

#include <vector>

namespace starling {

enum class Isa { kBaseline, kAvx2, kAvx512 };

// The widest that this CPU and operating system support.
Isa best_isa();
// All that they support, kBaseline first.
std::vector<Isa> supported_isas();

}  // namespace starling
