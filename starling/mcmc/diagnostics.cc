#include "starling/mcmc/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace starling {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kFewest = 4;

double mean_of(std::span<const double> series) {
  double sum = 0;
  for (const double x : series) sum += x;
  return sum / static_cast<double>(series.size());
}

// Unbiased.
double variance_of(std::span<const double> series) {
  const double mean = mean_of(series);
  double sum = 0;
  for (const double x : series) sum += (x - mean) * (x - mean);
  return sum / static_cast<double>(series.size() - 1);
}

}  // namespace

double split_r_hat(std::span<const double> series) {
  if (series.size() < kFewest) return kUnknown;
  const size_t half = series.size() / 2;
  const auto first = series.first(half), second = series.last(half);
  const double within = (variance_of(first) + variance_of(second)) / 2;
  const double difference = mean_of(first) - mean_of(second);
  const double between = difference * difference / 2;  // the variance of the two means
  if (!(within > 0)) return kUnknown;
  return std::sqrt(1 - 1 / static_cast<double>(half) + between / within);
}

double effective_size(std::span<const double> series) {
  const size_t n = series.size();
  if (n < kFewest) return kUnknown;
  const double mean = mean_of(series);
  std::vector<double> centered;
  for (const double x : series) centered.push_back(x - mean);
  const auto autocovariance = [&](size_t lag) {
    double sum = 0;
    for (size_t i = 0; i + lag < n; ++i) sum += centered[i] * centered[i + lag];
    return sum / static_cast<double>(n);
  };
  const double variance = autocovariance(0);
  if (!(variance > 0)) return kUnknown;
  double time = -1, before = std::numeric_limits<double>::infinity();
  for (size_t lag = 0; lag + 1 < n; lag += 2) {
    // The sum of two neighboring autocorrelations of a reversible chain is positive and falls.
    const double pair = std::min(before, (autocovariance(lag) + autocovariance(lag + 1)) / variance);
    if (pair <= 0) break;
    time += 2 * pair;
    before = pair;
  }
  const auto count = static_cast<double>(n);
  return count / std::max(time, 1 / std::log10(count));
}

}  // namespace starling
