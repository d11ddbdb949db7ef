// Checks that replicas are bit-identical.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

// A named range of memory to compare.
struct HashedRange {
  std::string name;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// Compares XXH3 hashes of the ranges with those of rank 0. Collective. Errors: Error(kNumeric) on a rank that
// differs, naming the rank, the first range that differs and the step.
void check_replicas_equal(Group& group, const std::vector<HashedRange>& ranges, int64_t step);

}  // namespace starling
