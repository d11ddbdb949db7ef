#include "starling/report/loss_curve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace starling {
namespace {

// Returns the bounds of interval `i` of `count` over `size` points.
std::pair<size_t, size_t> interval(size_t i, size_t count, size_t size) {
  return {i * size / count, (i + 1) * size / count};
}

}  // namespace

int64_t smoothing_steps(size_t longest_run) {
  constexpr std::array<int64_t, 10> kSteps = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000};
  const auto most = static_cast<int64_t>(longest_run / 16);
  const auto above = std::upper_bound(kSteps.begin(), kSteps.end(), most);
  return above == kSteps.begin() ? 1 : *(above - 1);
}

double smoothing_weight(int64_t steps) {
  return 2.0 / static_cast<double>(steps + 1);
}

std::vector<RunPoint> smoothed(const std::vector<RunPoint>& points, int64_t steps) {
  const double weight = smoothing_weight(steps);
  double average = 0, rest = 1;  // rest: (1 − w)^k
  std::vector<RunPoint> out = points;
  for (RunPoint& point : out) {
    if (!std::isfinite(point.loss)) continue;
    average = (1 - weight) * average + weight * point.loss;
    rest *= 1 - weight;
    point.loss = average / (1 - rest);
  }
  return out;
}

std::vector<RunPoint> sampled(const std::vector<RunPoint>& points, size_t count) {
  const size_t intervals = std::min(count, points.size());
  std::vector<RunPoint> out;
  for (size_t i = 0; i < intervals; ++i)
    out.push_back(points[interval(i, intervals, points.size()).second - 1]);
  return out;
}

std::vector<RunPoint> extremes(const std::vector<RunPoint>& points, size_t count) {
  std::vector<RunPoint> finite;
  std::copy_if(points.begin(), points.end(), std::back_inserter(finite),
               [](const RunPoint& point) { return std::isfinite(point.loss); });
  if (finite.size() <= 2 * count) return finite;
  std::vector<RunPoint> out;
  for (size_t i = 0; i < count; ++i) {
    const auto [begin, end] = interval(i, count, finite.size());
    const auto [least, greatest] = std::minmax_element(
        finite.begin() + static_cast<ptrdiff_t>(begin), finite.begin() + static_cast<ptrdiff_t>(end),
        [](const RunPoint& a, const RunPoint& b) { return a.loss < b.loss; });
    out.push_back(least < greatest ? *least : *greatest);
    if (least != greatest) out.push_back(least < greatest ? *greatest : *least);
  }
  return out;
}

}  // namespace starling
