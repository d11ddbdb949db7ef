// PriorityTree draws features by their expected progress, as STRADS does (Lee et al., "On model
// parallelization and scheduling strategies for distributed machine learning", NIPS 2014). The priority of
// feature j is
//
//   c_j = |δβ_j| + η,    η = ε / (1 − ε) · Σ_k |δβ_k| / d
//
// where δβ_j is the progress of j. A share ε of all draws is therefore uniform, at any scale of the progress.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace starling {

// A binary tree of sums, whose leaves are the progresses. Each sum is that of its two children, so the tree
// depends on the progresses alone and not on the order in which they were set.
class PriorityTree {
 public:
  // exploration: ε, at least 0 and below 1.
  PriorityTree(int64_t features, double exploration);

  // Sets |δβ| of a feature.
  void set(int64_t feature, double progress);
  // Sets |δβ| of all features. progress: a number per feature.
  void assign(const std::vector<double>& progress);
  // Returns |δβ| of a feature.
  double progress(int64_t feature) const { return sums_[static_cast<size_t>(leaves_ + feature)]; }
  // Returns Σ |δβ|.
  double total() const { return sums_[1]; }
  // Returns the number of features.
  int64_t features() const { return features_; }

  // Draws a feature. u and v: numbers in [0, 1). u decides between the uniform draw and the draw by progress,
  // and v decides the feature. Returns nothing if the draw is by progress and no feature has any.
  std::optional<int64_t> draw(double u, double v) const;

 private:
  const int64_t features_;
  const double exploration_;
  int64_t leaves_ = 1;  // a power of two
  std::vector<double> sums_;
};

}  // namespace starling
