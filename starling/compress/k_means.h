// Weight sharing by k-means (Han, Mao, Dally, Deep Compression, arXiv 1510.00149, section 3). The weights of
// a layer are divided into k clusters. All weights of a cluster get one value, the centroid.
//
//   cost = Σ (w - c(w))²
//
// The centroids begin at equal distances between the smallest and the largest weight (linear initialization).
// Of the paper's three initializations this one keeps large weights best, because it places centroids where
// few weights are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace starling {

// Numbers that share values.
struct Clusters {
  std::vector<float> centroids;  // they increase strictly
  std::vector<uint16_t> of;      // the cluster of each number
};

// Divides finite numbers into at most `count` clusters (1 to 65,535) by Lloyd's iterations. They end when no
// number changes its cluster, or after `iterations`. Clusters without numbers are left out. Equal inputs give
// equal results.
Clusters k_means(std::span<const float> values, int count, int iterations = 300);

// Returns the cost of clusters.
double k_means_cost(std::span<const float> values, const Clusters& clusters);

}  // namespace starling
