#include "starling/compress/k_means.h"

#include <algorithm>
#include <numeric>

#include "starling/base/check.h"

namespace starling {
namespace {

// The numbers in increasing order, and the sums of the first of them. Clusters of sorted numbers are ranges.
struct Sorted {
  explicit Sorted(std::span<const float> values) : order(values.size()) {
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
    numbers.reserve(order.size());
    sums.reserve(order.size() + 1);
    sums.push_back(0);
    for (const size_t i : order) {
      numbers.push_back(values[i]);
      sums.push_back(sums.back() + values[i]);
    }
  }
  std::vector<size_t> order;
  std::vector<double> numbers;
  std::vector<double> sums;
};

// Returns where each cluster begins in the sorted numbers. The border between two clusters is the middle
// between their centroids.
std::vector<size_t> begins_of(const std::vector<double>& numbers, const std::vector<double>& centroids) {
  std::vector<size_t> begins = {0};
  for (size_t c = 1; c < centroids.size(); ++c) {
    const double middle = (centroids[c - 1] + centroids[c]) / 2;
    const auto at =
        std::lower_bound(numbers.begin() + static_cast<std::ptrdiff_t>(begins.back()), numbers.end(), middle);
    begins.push_back(static_cast<size_t>(at - numbers.begin()));
  }
  begins.push_back(numbers.size());
  return begins;
}

// Moves each centroid to the mean of its numbers. A cluster without numbers keeps its centroid.
void move_centroids(std::vector<double>& centroids, const Sorted& sorted, const std::vector<size_t>& begins) {
  for (size_t c = 0; c < centroids.size(); ++c) {
    const size_t begin = begins[c], end = begins[c + 1];
    if (begin == end) continue;
    const double mean = (sorted.sums[end] - sorted.sums[begin]) / static_cast<double>(end - begin);
    centroids[c] = std::clamp(mean, sorted.numbers[begin], sorted.numbers[end - 1]);
  }
}

}  // namespace

Clusters k_means(std::span<const float> values, int count, int iterations) {
  STARLING_CHECK(count >= 1 && count <= 65'535, "{} clusters", count);
  Clusters clusters;
  if (values.empty()) return clusters;
  const Sorted sorted(values);
  const double low = sorted.numbers.front(), high = sorted.numbers.back();
  std::vector<double> centroids(static_cast<size_t>(count), low);
  for (size_t c = 1; c < centroids.size(); ++c)
    centroids[c] = low + (high - low) * static_cast<double>(c) / static_cast<double>(count - 1);
  std::vector<size_t> begins = begins_of(sorted.numbers, centroids);
  for (int i = 0; i < iterations; ++i) {
    move_centroids(centroids, sorted, begins);
    std::vector<size_t> next = begins_of(sorted.numbers, centroids);
    const bool stays = next == begins;
    begins = std::move(next);
    if (stays) break;
  }
  clusters.of.resize(values.size());
  for (size_t c = 0; c < centroids.size(); ++c) {
    if (begins[c] == begins[c + 1]) continue;
    const auto centroid = static_cast<float>(centroids[c]);
    // Two centroids may round to one fp32 number.
    if (clusters.centroids.empty() || clusters.centroids.back() != centroid)
      clusters.centroids.push_back(centroid);
    for (size_t i = begins[c]; i < begins[c + 1]; ++i)
      clusters.of[sorted.order[i]] = static_cast<uint16_t>(clusters.centroids.size() - 1);
  }
  return clusters;
}

double k_means_cost(std::span<const float> values, const Clusters& clusters) {
  double cost = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double apart = double{values[i]} - double{clusters.centroids[clusters.of[i]]};
    cost += apart * apart;
  }
  return cost;
}

}  // namespace starling
