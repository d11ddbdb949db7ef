#include "starling/compress/relative_index.h"

#include <gtest/gtest.h>

#include <random>

namespace starling {
namespace {

// Returns the entries by a walk over all elements.
std::vector<IndexEntry> by_walking(const std::vector<bool>& kept, int bits) {
  std::vector<IndexEntry> entries;
  uint32_t distance = 0;
  for (const bool weight : kept) {
    ++distance;
    if (weight || distance == 1u << bits) {
      entries.push_back({distance, !weight});
      distance = 0;
    }
  }
  return entries;
}

TEST(RelativeIndex, IsThatOfAWalkOverAllElements) {
  std::mt19937 random(3);
  for (int i = 0; i < 400; ++i) {
    std::vector<bool> kept(random() % 700);
    const uint32_t rarity = 1 + random() % 200;
    std::vector<uint64_t> positions;
    for (size_t e = 0; e < kept.size(); ++e) {
      kept[e] = random() % rarity == 0;
      if (kept[e]) positions.push_back(e);
    }
    for (int bits = 1; bits <= kMaxIndexBits; ++bits) {
      const auto expected = by_walking(kept, bits);
      const auto entries = relative_index(positions, kept.size(), bits);
      ASSERT_EQ(entries.size(), expected.size());
      for (size_t e = 0; e < entries.size(); ++e) {
        EXPECT_EQ(entries[e].distance, expected[e].distance);
        EXPECT_EQ(entries[e].padding, expected[e].padding);
      }
    }
  }
}

TEST(RelativeIndex, TheExampleOfThePaper) {
  // Figure 2: indexes 1, 4 and 15 with 3 bits. The first distance of the paper counts from index 0 and is 1.
  // Here it counts from the place before the first element and is 2. All other distances are equal.
  const std::vector<uint64_t> positions = {1, 4, 15};
  const auto entries = relative_index(positions, 16, 3);
  ASSERT_EQ(entries.size(), 4);
  EXPECT_EQ(entries[0].distance, 2);
  EXPECT_EQ(entries[1].distance, 3);
  EXPECT_EQ(entries[2].distance, 8);
  EXPECT_TRUE(entries[2].padding);
  EXPECT_EQ(entries[3].distance, 3);
  EXPECT_FALSE(entries[3].padding);
}

}  // namespace
}  // namespace starling
