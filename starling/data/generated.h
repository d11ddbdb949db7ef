// Sizes and seeds of the generated data sets, the same for reading (factory.h) and writing (make_data.h).
#pragma once

#include <cstdint>

namespace starling {

constexpr int64_t kGeneratedTrain = 8192;  // samples where data.samples is 0
constexpr int64_t kGeneratedTest = 1024;   // samples where data.test_samples is 0

constexpr int64_t generated_size(int64_t asked, int64_t usual) {
  return asked > 0 ? asked : usual;
}
// The seed of the test part.
constexpr uint64_t generated_test_seed(uint64_t seed) {
  return seed ^ 0x74657374ULL;
}

}  // namespace starling
