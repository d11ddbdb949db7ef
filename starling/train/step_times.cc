#include "starling/train/step_times.h"

#include <algorithm>
#include <numeric>

namespace starling {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

void StepTimes::add(double seconds) {
  all_.push_back(seconds);
}

double StepTimes::recent() const {
  const size_t n = std::min<size_t>(all_.size(), 64);
  return median({all_.end() - static_cast<int64_t>(n), all_.end()});
}

double StepTimes::overall() const {
  const size_t skipped = all_.size() > kWarmUp ? kWarmUp : 0;
  return median({all_.begin() + static_cast<int64_t>(skipped), all_.end()});
}

double StepTimes::mean() const {
  if (all_.empty()) return 0;
  const size_t skip = all_.size() > kWarmUp ? kWarmUp : 0;
  return std::accumulate(all_.begin() + static_cast<std::ptrdiff_t>(skip), all_.end(), 0.0) /
         static_cast<double>(all_.size() - skip);
}

}  // namespace starling
