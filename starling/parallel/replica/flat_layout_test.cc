#include "starling/parallel/replica/flat_layout.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(FlatLayout, KeepsOrderAlignsAndCutsBuckets) {
  const FlatLayout layout = make_flat_layout({10, 100, 64}, {2, 0, 1}, 100);
  EXPECT_EQ(layout.offset, (std::vector<size_t>{64, 128, 0}));
  ASSERT_EQ(layout.buckets.size(), 2u);
  EXPECT_EQ(layout.buckets[0].parameters, (std::vector<size_t>{2, 0}));
  EXPECT_EQ(layout.buckets[0].end, 128u);
  EXPECT_EQ(layout.buckets[1].begin, 128u);
  EXPECT_EQ(layout.total, 256u);
  EXPECT_EQ(layout.bucket_of, (std::vector<size_t>{0, 1, 0}));
}

TEST(FlatLayout, TotalDoesNotDependOnOrder) {
  const std::vector<size_t> sizes = {3, 700, 64, 65};
  EXPECT_EQ(make_flat_layout(sizes, {0, 1, 2, 3}, 1).total,
            make_flat_layout(sizes, {3, 1, 0, 2}, 1000).total);
}

TEST(FlatLayout, SharesCoverARangeOnce) {
  for (size_t shares : {1, 2, 3, 5}) {
    size_t expected = 128;
    for (size_t i = 0; i < shares; ++i) {
      const auto [from, to] = share_of(128, 128 + 777 * 64, i, shares);
      EXPECT_EQ(from, expected);
      expected = to;
    }
    EXPECT_EQ(expected, 128u + 777 * 64);
  }
}

}  // namespace
}  // namespace starling
