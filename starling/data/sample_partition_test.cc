#include "starling/data/sample_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "starling/base/error.h"

namespace starling {
namespace {

std::vector<int64_t> ten_classes(int64_t n) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < n; ++i) labels.push_back((i * 7) % 10);
  return labels;
}

void expect_each_sample_once(const std::vector<std::vector<int64_t>>& parts, size_t n) {
  std::set<int64_t> seen;
  size_t count = 0;
  for (const auto& part : parts) {
    EXPECT_FALSE(part.empty());
    count += part.size();
    seen.insert(part.begin(), part.end());
  }
  EXPECT_EQ(count, n);
  EXPECT_EQ(seen.size(), n);
}

size_t classes_in(const std::vector<int64_t>& part, const std::vector<int64_t>& labels) {
  std::set<int64_t> classes;
  for (const int64_t i : part) classes.insert(labels[i]);
  return classes.size();
}

TEST(Partition, EverySampleBelongsToOneRank) {
  const auto labels = ten_classes(1003);
  for (const char* kind : {"iid", "by-label", "dirichlet=0.3", "dirichlet=0.001", "dirichlet=100"})
    expect_each_sample_once(partition_samples(labels, 4, kind, 5), labels.size());
}

TEST(Partition, ByLabelGivesARankFewClassesAndIidAll) {
  const auto labels = ten_classes(1000);
  for (const auto& part : partition_samples(labels, 4, "by-label", 5))
    EXPECT_LE(classes_in(part, labels), 4u);
  for (const auto& part : partition_samples(labels, 4, "iid", 5)) EXPECT_EQ(classes_in(part, labels), 10u);
}

TEST(Partition, ASmallAlphaIsLessEqualThanALargeOne) {
  const auto labels = ten_classes(2000);
  const auto unevenness = [&](const char* kind) {
    double sum = 0;  // sum over classes of the largest share that a rank has of a class
    const auto parts = partition_samples(labels, 4, kind, 5);
    for (int64_t c = 0; c < 10; ++c) {
      int64_t largest = 0;
      for (const auto& part : parts)
        largest = std::max<int64_t>(
            largest, std::count_if(part.begin(), part.end(), [&](int64_t i) { return labels[i] == c; }));
      sum += static_cast<double>(largest) / 200;
    }
    return sum / 10;
  };
  EXPECT_GT(unevenness("dirichlet=0.1"), unevenness("dirichlet=100") + 0.2);
  EXPECT_LT(unevenness("dirichlet=100"), 0.4);
}

TEST(Partition, IsAFunctionOfItsArguments) {
  const auto labels = ten_classes(100);
  EXPECT_EQ(partition_samples(labels, 3, "iid", 5), partition_samples(labels, 3, "iid", 5));
  EXPECT_NE(partition_samples(labels, 3, "iid", 5), partition_samples(labels, 3, "iid", 6));
}

TEST(Partition, RefusesWhatItDoesNotKnow) {
  const auto labels = ten_classes(10);
  for (const char* kind : {"", "even", "dirichlet=", "dirichlet=0", "dirichlet=-1", "dirichlet=x"})
    EXPECT_THROW(partition_samples(labels, 2, kind, 1), ConfigError) << kind;
  EXPECT_THROW(partition_samples(labels, 11, "iid", 1), ConfigError);
}

}  // namespace
}  // namespace starling
