// The correlations of pairs of features, which the dependency check needs. A pair is computed when a check
// first asks for it, and then kept.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "starling/lasso/lasso_data.h"
#include "starling/lasso/rank_sums.h"

namespace starling {

// Correlations holds |x_jᵀx_k| / (‖x_j‖ ‖x_k‖) of pairs. All ranks hold equal numbers. A feature without
// variance has correlation 0 with all features.
class Correlations {
 public:
  // squares: ‖x_j‖² over all ranks, for each feature. capacity: the most features whose pairs are kept, at
  // least the features of one call. The memory is at most capacity²/2 numbers. All arguments must
  // outlive this object.
  Correlations(const LassoData& data, const std::vector<double>& squares, RankSums& sums,
               int64_t capacity = 4096);

  // Makes sure that all pairs of some features are known, which differ. Computes those that are not.
  // Collective. Errors: CommError.
  void prepare(std::span<const int64_t> features);
  // Returns the correlation of a pair that the last prepare() named.
  double at(int64_t a, int64_t b) const;
  // Returns the number of pairs that were computed so far.
  int64_t computed() const { return computed_; }

 private:
  void make_room(std::span<const int64_t> features);
  void multiply(std::span<const int64_t> features, std::span<const size_t> first,
                std::span<const double* const> columns);

  const LassoData& data_;
  const std::vector<double>& squares_;
  RankSums& sums_;
  const int64_t capacity_;
  std::vector<int32_t> slot_;              // of each feature; −1: none
  std::vector<std::vector<double>> rows_;  // rows_[s][t] for t < s; −1: not computed
  std::vector<int64_t> owner_;             // the feature of a slot
  int64_t computed_ = 0;
  std::vector<std::pair<int64_t, int64_t>> missing_;
  std::vector<double> products_;
};

}  // namespace starling
