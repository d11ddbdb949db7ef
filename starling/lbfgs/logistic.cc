#include "starling/lbfgs/logistic.h"

#include <algorithm>
#include <cmath>

namespace starling {
namespace {

constexpr int64_t kSamplesPerQuestion = 256;

}  // namespace

std::optional<double> logistic_sum(const SampleTable& table, int64_t begin, int64_t end,
                                   std::span<const double> weights, std::span<double> gradient,
                                   const std::function<bool()>& cancelled) {
  std::fill(gradient.begin(), gradient.end(), 0);
  const auto features = static_cast<size_t>(table.features);
  double loss = 0;
  for (int64_t i = begin; i < end; ++i) {
    if ((i - begin) % kSamplesPerQuestion == 0 && cancelled && cancelled()) return std::nullopt;
    const double* x = table.row(i);
    double z = weights[features];
    for (size_t j = 0; j < features; ++j) z += weights[j] * x[j];
    // exp() of a negative number never overflows.
    const double e = std::exp(-std::abs(z));
    const double y = table.labels[static_cast<size_t>(i)];
    loss += std::max(z, 0.0) - y * z + std::log1p(e);
    const double error = (z >= 0 ? 1 / (1 + e) : e / (1 + e)) - y;
    for (size_t j = 0; j < features; ++j) gradient[j] += error * x[j];
    gradient[features] += error;
  }
  return loss;
}

}  // namespace starling
