#include "starling/lasso/correlations.h"

#include <algorithm>
#include <cmath>

#include "starling/lasso/column_kernels.h"

namespace starling {
namespace {

constexpr int64_t kPiece = 512;  // samples: 64 columns take 256 KiB

}  // namespace

Correlations::Correlations(const LassoData& data, const std::vector<double>& squares, RankSums& sums,
                           int64_t capacity)
    : data_(data),
      squares_(squares),
      sums_(sums),
      capacity_(capacity),
      slot_(static_cast<size_t>(data.features), -1) {}

// Gives each feature a slot. If there are too few, all pairs are dropped first.
void Correlations::make_room(std::span<const int64_t> features) {
  const auto is_new = [this](int64_t feature) { return slot_[static_cast<size_t>(feature)] < 0; };
  if (std::ssize(rows_) + std::count_if(features.begin(), features.end(), is_new) > capacity_) {
    rows_.clear();
    owner_.clear();
    std::fill(slot_.begin(), slot_.end(), -1);
  }
  for (const int64_t feature : features) {
    if (!is_new(feature)) continue;
    slot_[static_cast<size_t>(feature)] = static_cast<int32_t>(rows_.size());
    rows_.emplace_back(rows_.size(), -1.0);
    owner_.push_back(feature);
  }
}

void Correlations::prepare(std::span<const int64_t> features) {
  make_room(features);
  missing_.clear();
  std::vector<size_t> first(1, 0);     // the first missing pair of each feature, and the end
  std::vector<const double*> columns;  // of the other features of the missing pairs
  for (size_t i = 0; i < features.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      const auto [low, high] =
          std::minmax(slot_[static_cast<size_t>(features[i])], slot_[static_cast<size_t>(features[k])]);
      if (rows_[static_cast<size_t>(high)][static_cast<size_t>(low)] >= 0) continue;
      missing_.emplace_back(low, high);
      columns.push_back(data_.column(features[k]));
    }
    first.push_back(missing_.size());
  }
  multiply(features, first, columns);
  sums_.add(products_);
  for (size_t i = 0; i < missing_.size(); ++i) {
    const auto [low, high] = missing_[i];
    const double scale = squares_[static_cast<size_t>(owner_[static_cast<size_t>(low)])] *
                         squares_[static_cast<size_t>(owner_[static_cast<size_t>(high)])];
    rows_[static_cast<size_t>(high)][static_cast<size_t>(low)] =
        scale > 0 ? std::abs(products_[i]) / std::sqrt(scale) : 0;
  }
  computed_ += std::ssize(missing_);
}

// Sets the products of the missing pairs over this rank's samples. Pieces of all columns stay in the cache of
// the core together.
void Correlations::multiply(std::span<const int64_t> features, std::span<const size_t> first,
                            std::span<const double* const> columns) {
  products_.assign(columns.size(), 0);
  std::vector<const double*> pieces(columns.size());
  std::vector<double> part(columns.size());
  for (int64_t begin = 0; begin < data_.count; begin += kPiece) {
    const int64_t count = std::min(kPiece, data_.count - begin);
    for (size_t k = 0; k < columns.size(); ++k) pieces[k] = columns[k] + begin;
    for (size_t i = 0; i < features.size(); ++i)
      dot_products(data_.column(features[i]) + begin, {pieces.data() + first[i], first[i + 1] - first[i]},
                   count, part.data() + first[i]);
    for (size_t k = 0; k < columns.size(); ++k) products_[k] += part[k];
  }
}

double Correlations::at(int64_t a, int64_t b) const {
  const auto [low, high] = std::minmax(slot_[static_cast<size_t>(a)], slot_[static_cast<size_t>(b)]);
  return rows_[static_cast<size_t>(high)][static_cast<size_t>(low)];
}

}  // namespace starling
