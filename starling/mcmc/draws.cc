#include "starling/mcmc/draws.h"

#include <cmath>

namespace starling {

std::vector<double> PosteriorDraws::series(int64_t parameter) const {
  std::vector<double> numbers;
  numbers.reserve(static_cast<size_t>(count()));
  for (int64_t i = 0; i < count(); ++i) numbers.push_back(row(i)[static_cast<size_t>(parameter)]);
  return numbers;
}

double Moments::deviation(size_t parameter) const {
  return std::sqrt(covariance(parameter, parameter));
}

Moments moments_of(const PosteriorDraws& draws) {
  const auto d = static_cast<size_t>(draws.dimensions);
  const auto n = static_cast<double>(draws.count());
  Moments moments{std::vector<double>(d, 0.0), SquareMatrix(d)};
  for (int64_t i = 0; i < draws.count(); ++i)
    for (size_t j = 0; j < d; ++j) moments.mean[j] += draws.row(i)[j] / n;
  SquareMatrix& covariance = moments.covariance;
  for (int64_t i = 0; i < draws.count(); ++i) {
    const std::span<const double> x = draws.row(i);
    for (size_t j = 0; j < d; ++j)
      for (size_t k = 0; k <= j; ++k)
        covariance(j, k) += (x[j] - moments.mean[j]) * (x[k] - moments.mean[k]) / (n - 1);
  }
  for (size_t j = 0; j < d; ++j)
    for (size_t k = 0; k < j; ++k) covariance(k, j) = covariance(j, k);
  return moments;
}

}  // namespace starling
