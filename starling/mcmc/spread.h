// The mean and the covariance of points that come one after another (Welford 1962).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "starling/mcmc/chain_state.h"
#include "starling/mcmc/matrix.h"

namespace starling {

// Spread adds points. With `whole` it has the covariance, otherwise the variances only.
class Spread {
 public:
  // Begins without a point.
  Spread(size_t dimensions, bool whole)
      : whole_(whole), mean_(dimensions, 0.0), products_(whole ? dimensions * dimensions : dimensions, 0.0) {}

  // Forgets all points.
  void clear() { *this = Spread(mean_.size(), whole_); }
  // Adds a point.
  void add(std::span<const double> x) {
    const size_t d = mean_.size();
    count_ += 1;
    std::vector<double> before(d);
    for (size_t i = 0; i < d; ++i) {
      before[i] = x[i] - mean_[i];
      mean_[i] += before[i] / count_;
    }
    for (size_t i = 0; i < d; ++i) {
      if (!whole_) products_[i] += before[i] * (x[i] - mean_[i]);
      for (size_t j = 0; whole_ && j < d; ++j) products_[i * d + j] += before[i] * (x[j] - mean_[j]);
    }
  }
  // How many points were added.
  double count() const { return count_; }
  // Returns the unbiased variance of a parameter. There must be two points.
  double variance(size_t i) const { return products_[whole_ ? i * mean_.size() + i : i] / (count_ - 1); }
  // Returns the unbiased covariance. There must be two points, and `whole` must be set.
  SquareMatrix covariance() const {
    SquareMatrix matrix(mean_.size());
    for (size_t i = 0; i < products_.size(); ++i) matrix.values[i] = products_[i] / (count_ - 1);
    return matrix;
  }
  // Writes or reads the state.
  void list(ChainState& state) {
    state.counter(count_);
    state.numbers(mean_);
    state.numbers(products_);
  }

 private:
  bool whole_;
  double count_ = 0;
  std::vector<double> mean_;
  std::vector<double> products_;  // sums of products of differences from the mean
};

}  // namespace starling
