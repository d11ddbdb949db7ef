#include "starling/compress/k_means.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace starling {
namespace {

std::vector<float> random_values(std::mt19937& random, size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// Lloyd's iterations as in a text book: each number goes to its nearest centroid.
double cost_by_definition(const std::vector<float>& values, int count, int iterations) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  std::vector<double> centroids(static_cast<size_t>(count), *low);
  for (int c = 1; c < count; ++c)
    centroids[static_cast<size_t>(c)] = *low + (double{*high} - *low) * c / (count - 1);
  const auto nearest = [&](double v) {
    return static_cast<size_t>(
        std::min_element(centroids.begin(), centroids.end(),
                         [&](double a, double b) { return std::abs(a - v) < std::abs(b - v); }) -
        centroids.begin());
  };
  for (int i = 0; i < iterations; ++i) {
    std::vector<double> sums(centroids.size()), counts(centroids.size());
    for (const float v : values) {
      sums[nearest(v)] += v;
      counts[nearest(v)] += 1;
    }
    for (size_t c = 0; c < centroids.size(); ++c) {
      if (counts[c] > 0) centroids[c] = sums[c] / counts[c];
    }
  }
  double cost = 0;
  for (const float v : values) cost += std::pow(v - centroids[nearest(v)], 2);
  return cost;
}

TEST(KMeans, EqualsLloydsIterations) {
  std::mt19937 random(4);
  for (const int count : {1, 2, 7, 32}) {
    const std::vector<float> values = random_values(random, 300);
    for (const int iterations : {0, 1, 2, 5, 300}) {
      const double expected = cost_by_definition(values, count, iterations);
      EXPECT_NEAR(k_means_cost(values, k_means(values, count, iterations)), expected, 1e-5 * expected);
    }
  }
}

TEST(KMeans, NoIterationIncreasesTheCost) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    const std::vector<float> values = random_values(random, 200 + random() % 2000);
    const int count = 2 + static_cast<int>(random() % 60);
    double before = k_means_cost(values, k_means(values, count, 0));
    for (int i = 1; i < 40; ++i) {
      const double cost = k_means_cost(values, k_means(values, count, i));
      EXPECT_LE(cost, before * (1 + 1e-6));
      before = cost;
    }
  }
}

TEST(KMeans, EveryNumberIsInItsNearestCluster) {
  std::mt19937 random(6);
  const std::vector<float> values = random_values(random, 1000);
  const Clusters clusters = k_means(values, 16);
  EXPECT_TRUE(std::is_sorted(clusters.centroids.begin(), clusters.centroids.end()));
  for (size_t i = 0; i < values.size(); ++i) {
    const float own = std::abs(values[i] - clusters.centroids[clusters.of[i]]);
    for (const float centroid : clusters.centroids) EXPECT_LE(own, std::abs(values[i] - centroid) + 1e-6f);
  }
}

TEST(KMeans, EqualNumbersAndFewNumbersNeedFewClusters) {
  EXPECT_TRUE(k_means({}, 8).centroids.empty());
  const std::vector<float> equal(10, 0.25f);
  EXPECT_EQ(k_means(equal, 8).centroids, std::vector<float>{0.25f});
  const std::vector<float> two = {3, -1};
  const Clusters clusters = k_means(two, 256);
  EXPECT_EQ(clusters.centroids, (std::vector<float>{-1, 3}));
  EXPECT_EQ(clusters.of, (std::vector<uint16_t>{1, 0}));
}

}  // namespace
}  // namespace starling
