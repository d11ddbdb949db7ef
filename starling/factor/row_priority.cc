#include "starling/factor/row_priority.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "starling/base/keyed_random.h"

namespace starling {
namespace {

constexpr uint64_t kRowDraw = 0x0405;

}  // namespace

void draw_rows(int64_t count, uint64_t seed, int64_t epoch, int64_t first, std::span<const double> progress,
               std::span<uint8_t> chosen, MemoryBudget& budget) {
  const auto rows = static_cast<double>(progress.size());
  const double sum = std::accumulate(progress.begin(), progress.end(), 0.0);
  const double least = sum > 0 ? kRowExploration / (1 - kRowExploration) * sum / rows : 1;
  using Key = std::pair<double, size_t>;
  Counted<Key> keys{CountedAllocator<Key>(budget)};
  keys.reserve(progress.size());
  for (size_t i = 0; i < progress.size(); ++i) {
    const double u = 1 - uniform_of(key_of(seed ^ kRowDraw, static_cast<uint64_t>(epoch),
                                           static_cast<uint64_t>(first) + i));
    keys.emplace_back(-std::log(u) / (progress[i] + least), i);
  }
  std::nth_element(keys.begin(), keys.begin() + count, keys.end());
  std::fill(chosen.begin(), chosen.end(), uint8_t{0});
  for (int64_t k = 0; k < count; ++k) chosen[keys[static_cast<size_t>(k)].second] = 1;
}

template <typename T>
RowPriority<T>::RowPriority(double share, const FactorBlock<T>& w, MemoryBudget& budget)
    : share_(share),
      rows_(w.range.count()),
      count_(rows_),
      budget_(budget),
      before_(CountedAllocator<T>(budget)),
      progress_(CountedAllocator<double>(budget)),
      chosen_(CountedAllocator<uint8_t>(budget)) {
  if (share >= 1) return;
  before_.resize(w.size());
  progress_.resize(static_cast<size_t>(rows_), 0);
  chosen_.resize(static_cast<size_t>(rows_), 1);
}

template <typename T>
void RowPriority<T>::begin_epoch(uint64_t seed, int64_t epoch, const FactorBlock<T>& w) {
  if (share_ >= 1) return;
  if (epoch > 0) {
    count_ = std::clamp<int64_t>(std::llround(share_ * static_cast<double>(rows_)), 1, rows_);
    draw_rows(count_, seed, epoch, w.range.begin, progress_, chosen_, budget_);
  }
  std::copy_n(w.values.begin(), w.size(), before_.begin());
}

template <typename T>
void RowPriority<T>::end_epoch(const FactorBlock<T>& w) {
  if (share_ >= 1) return;
  for (int64_t i = 0; i < rows_; ++i) {
    if (chosen_[static_cast<size_t>(i)] == 0) continue;
    double square = 0;
    for (int64_t f = i * w.factors; f < (i + 1) * w.factors; ++f) {
      const double change = static_cast<double>(w.values[static_cast<size_t>(f)]) -
                            static_cast<double>(before_[static_cast<size_t>(f)]);
      square += change * change;
    }
    // NaN has no place in the order of the priorities.
    progress_[static_cast<size_t>(i)] =
        std::isnan(square) ? std::numeric_limits<double>::infinity() : std::sqrt(square);
  }
}

template class RowPriority<float>;
template class RowPriority<double>;

}  // namespace starling
