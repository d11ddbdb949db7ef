// The lasso on samples that are divided over ranks:
//
//   minimize  P(β) = 1/(2n) ‖y − Xβ‖² + λ ‖β‖₁
//
// X has a column per feature. With an intercept, all columns and y are centered first. With r = y − Xβ, one
// update of a weight minimizes P over this weight:
//
//   β_j ← S(x_jᵀr + ‖x_j‖² β_j, nλ) / ‖x_j‖²,     S(z, t) = sign(z) max(|z| − t, 0)
//
// The duality gap bounds the distance to the minimum. For any s with |s| ‖Xᵀr‖_∞ ≤ nλ, the minimum is at
// least D(s) = (2 s yᵀr − s² ‖r‖²) / (2n). The best such s is yᵀr / ‖r‖², limited to this range. A pass need
// not look at features whose |x_jᵀr| is at most nλ, if it also limits |s| to 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/lasso/lasso_data.h"
#include "starling/lasso/rank_sums.h"

namespace starling {

// LassoProblem holds what does not change during a run, and computes sums over all ranks.
class LassoProblem {
 public:
  // Centers the data, if intercept is set. Collective. data and sums must outlive this object. Errors:
  // DataError if y does not vary; CommError.
  LassoProblem(LassoData& data, RankSums& sums, bool intercept);

  // The data of this rank, centered.
  const LassoData& data() const { return data_; }
  // ‖x_j‖² of each feature over all ranks.
  const std::vector<double>& squares() const { return squares_; }
  // x_jᵀy of each feature over all ranks.
  const std::vector<double>& products() const { return products_; }
  // The smallest λ at which all weights are zero: ‖Xᵀy‖_∞ / n.
  double lambda_max() const { return lambda_max_; }
  // P(0) = ‖y‖² / (2n).
  double objective_at_zero() const { return target_square_ / (2 * samples()); }
  // n, as a number.
  double samples() const { return static_cast<double>(data_.samples); }
  // Returns the intercept that belongs to weights.
  double intercept_of(const std::vector<double>& weights) const;

  // Returns the change of β_j that minimizes P over it. product: x_jᵀr. weight: β_j before. A change that is
  // rounding, |δβ_j| ‖x_j‖ ≤ 1e-14 ‖y‖, counts as 0 unless it makes β_j zero.
  double change_of(int64_t feature, double product, double weight, double lambda) const;

  // What a pass over features gives.
  struct Pass {
    std::vector<double> products;  // x_jᵀr of each feature of the pass
    double residual_square = 0;    // ‖r‖²
    double objective = 0;          // P
    double bound = 0;              // the largest D(s) for this r
  };
  // Looks at some features. |x_jᵀr| of all other features is at most nλ. residual: r of this rank's samples.
  // l1: ‖β‖₁. Collective.
  Pass pass(std::span<const int64_t> features, const std::vector<double>& residual, double l1,
            double lambda) const;

 private:
  void center();
  void drop_constants();

  LassoData& data_;
  RankSums& sums_;
  std::vector<double> means_;  // of the features and, last, of y; empty without intercept
  std::vector<double> squares_, products_;
  double target_square_ = 0;  // ‖y‖²
  double lambda_max_ = 0;
};

}  // namespace starling
