// PosteriorDraws of a chain or of a combination, and their moments.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/mcmc/matrix.h"

namespace starling {

// PosteriorDraws are points, one after another.
struct PosteriorDraws {
  int64_t dimensions = 1;      // numbers per draw
  std::vector<double> values;  // count() · dimensions

  // The number of draws.
  int64_t count() const { return static_cast<int64_t>(values.size()) / dimensions; }
  // The numbers of a draw.
  std::span<const double> row(int64_t draw) const {
    return {values.data() + draw * dimensions, static_cast<size_t>(dimensions)};
  }
  // Returns one parameter of all draws.
  std::vector<double> series(int64_t parameter) const;
};

// The first two moments of a distribution.
struct Moments {
  std::vector<double> mean;  // of each parameter
  SquareMatrix covariance;   // of all parameters

  // Returns the standard deviation of a parameter.
  double deviation(size_t parameter) const;
};

// Returns the mean and the unbiased covariance of at least two draws.
Moments moments_of(const PosteriorDraws& draws);

}  // namespace starling
