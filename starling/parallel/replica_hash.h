// The check that replicas are bit-identical.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

struct HashedRange {
  std::string name;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// Collective: compares XXH3 hashes of the ranges with rank 0's. Errors: Error(kNumeric) on the rank that differs, naming
// the rank, the first range that differs and the step.
void check_replicas_equal(Group& group, const std::vector<HashedRange>& ranges, int64_t step);

}  // namespace starling
