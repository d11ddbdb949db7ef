// Sizes and seeds of the generated data sets. Reading (source_factory.h) and writing (make_data.h) share
// them.
#pragma once

#include <cstdint>

namespace starling {

constexpr int64_t kGeneratedTrain = 8192;  // training samples if data.samples is 0
constexpr int64_t kGeneratedTest = 1024;   // test samples if data.test_samples is 0

// Returns `asked` if it is positive, otherwise `usual`.
constexpr int64_t generated_size(int64_t asked, int64_t usual) {
  return asked > 0 ? asked : usual;
}
// Returns the seed of the test part.
constexpr uint64_t generated_test_seed(uint64_t seed) {
  return seed ^ 0x74657374ULL;
}

}  // namespace starling
