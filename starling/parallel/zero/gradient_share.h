// What ZeRO computes from a rank's share of a unit's gradient. A unit is a flat range of parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "starling/parallel/replica/flat_layout.h"
#include "starling/parallel/replica/model_parts.h"
#include "starling/parallel/replica/replica.h"

namespace starling {

// A rank's share of the gradient of one unit.
struct GradientShare {
  at::Tensor gradient;                    // elements [begin, begin + numel) of the unit
  int64_t begin;                          // in elements
  const Replica& replica;                 // has the parameters
  const std::vector<size_t>& parameters;  // of the unit: indices into those of the replica
  const FlatLayout& layout;               // by position in `parameters`

  // Returns the sum of the squares, in fp64. Parameters that another part of the model counts are left out.
  double sum_of_squares(const ModelParts& parts) const;
  // Returns the name of the first parameter whose gradient is not finite here, or nothing.
  std::string first_not_finite() const;
};

}  // namespace starling
