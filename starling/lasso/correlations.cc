#include "starling/lasso/correlations.h"

#include <algorithm>
#include <cmath>

#include "starling/lasso/column_kernels.h"

namespace starling {

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
  products_.clear();
  std::vector<const double*> columns;
  for (size_t i = 0; i < features.size(); ++i) {
    columns.clear();
    for (size_t k = 0; k < i; ++k) {
      const auto [low, high] =
          std::minmax(slot_[static_cast<size_t>(features[i])], slot_[static_cast<size_t>(features[k])]);
      if (rows_[static_cast<size_t>(high)][static_cast<size_t>(low)] >= 0) continue;
      missing_.emplace_back(low, high);
      columns.push_back(data_.column(features[k]));
    }
    products_.resize(missing_.size());
    dot_products(data_.column(features[i]), columns, data_.count,
                 products_.data() + (products_.size() - columns.size()));
  }
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

double Correlations::at(int64_t a, int64_t b) const {
  const auto [low, high] = std::minmax(slot_[static_cast<size_t>(a)], slot_[static_cast<size_t>(b)]);
  return rows_[static_cast<size_t>(high)][static_cast<size_t>(low)];
}

}  // namespace starling
