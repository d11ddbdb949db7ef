#include "starling/data/divide_samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "starling/base/check.h"

namespace starling {

std::vector<int64_t> divide_samples(int64_t samples, const std::vector<double>& parts, int64_t least) {
  STARLING_CHECK(!parts.empty() && samples >= 0, "{} samples for {} ranks", samples, parts.size());
  const auto ranks = static_cast<int64_t>(parts.size());
  if (samples < least * ranks) least = 0;
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  std::vector<double> exact;
  std::vector<int64_t> counts;
  exact.reserve(parts.size());
  counts.reserve(parts.size());
  for (const double part : parts) {
    exact.push_back(static_cast<double>(samples) * part / sum);
    counts.push_back(std::max(least, static_cast<int64_t>(std::floor(exact.back()))));
  }
  int64_t left = samples - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto lacks = [&](size_t rank) { return exact[rank] - static_cast<double>(counts[rank]); };
  for (; left > 0; --left) {
    size_t most = 0;
    for (size_t rank = 1; rank < counts.size(); ++rank) {
      if (lacks(rank) > lacks(most)) most = rank;
    }
    ++counts[most];
  }
  for (; left < 0; ++left) {  // some ranks were raised to `least`
    size_t giver = counts.size();
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      if (counts[rank] > least && (giver == counts.size() || lacks(rank) < lacks(giver))) giver = rank;
    }
    --counts[giver];
  }
  return counts;
}

}  // namespace starling
