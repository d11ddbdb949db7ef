#include "starling/topics/alias_table.h"

#include <algorithm>
#include <limits>

namespace starling {

double AliasTable::build(std::span<const float> weights) {
  size_ = weights.size();
  if (bins_.size() < size_) bins_.resize(size_), work_.resize(size_), left_.resize(size_);
  double sum = 0;
  for (const float w : weights) sum += w;
  if (sum <= 0) return 0;
  const auto scale = static_cast<float>(static_cast<double>(size_) / sum);
  // Places below the mean fill work_ from its begin, and the others from its end.
  size_t small = 0, large = size_;
  for (size_t i = 0; i < size_; ++i) {
    left_[i] = weights[i] * scale;
    if (left_[i] < 1) {
      work_[small++] = static_cast<uint32_t>(i);
    } else {
      work_[--large] = static_cast<uint32_t>(i);
    }
  }
  constexpr float kWhole = 4294967296.0F;
  constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();
  size_t next = 0;
  while (next < small && large < size_) {
    const uint32_t low = work_[next++], high = work_[large];
    bins_[low] = {static_cast<uint32_t>(std::min(left_[low] * kWhole, 4294967040.0F)), high};
    left_[high] -= 1 - left_[low];
    if (left_[high] < 1) {
      // The place of `high` in work_ becomes free, and the small places have room behind them.
      ++large;
      work_[small++] = high;
    }
  }
  // What is left has weight 1, apart from rounding.
  for (; next < small; ++next) bins_[work_[next]] = {kMost, work_[next]};
  for (; large < size_; ++large) bins_[work_[large]] = {kMost, work_[large]};
  return sum;
}

}  // namespace starling
