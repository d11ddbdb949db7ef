// Tests whether numbers are finite, with vector instructions.
#pragma once

#include <cstddef>

#include "starling/base/isa.h"

namespace starling {

// Returns whether none of `count` elements is NaN or infinite. T: float or double.
template <typename T>
bool all_finite(const T* values, size_t count, Isa isa = best_isa());

}  // namespace starling
