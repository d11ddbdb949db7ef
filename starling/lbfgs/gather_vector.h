// Puts the slices of a vector together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

// Returns a whole vector of `elements` elements. own: this rank's slice (vector_shard.h). Collective.
std::vector<double> gather_vector(Group& group, int64_t elements, std::span<const double> own);

}  // namespace starling
