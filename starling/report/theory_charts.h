// The charts of what formulas predict: exchange time by ranks, bytes by layer, and memory per rank.
#pragma once

#include <string>

#include "starling/report/comparison.h"

namespace starling {

// Returns the section as HTML. Charts for which the comparison has no data are left out.
std::string theory_section(const Comparison& comparison);

}  // namespace starling
