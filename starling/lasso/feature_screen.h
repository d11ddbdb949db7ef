// FeatureScreen tells which features a pass has to look at.
//
// The screen knows c_j = x_jᵀr₀ of all features for an earlier residual r₀, its reference. For the residual
// r,
//
//   |x_jᵀr| ≤ |c_j| + ‖x_j‖ ‖r − r₀‖.
//
// If this bound is below nλ, an update leaves a weight of zero at zero. The pass then needs no x_jᵀr. So
// leaving out such features changes no result.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/lasso/lasso_problem.h"
#include "starling/lasso/rank_sums.h"

namespace starling {

// All ranks choose equal features.
class FeatureScreen {
 public:
  // The first reference is the residual of zero weights. problem and sums must outlive this object.
  FeatureScreen(const LassoProblem& problem, RankSums& sums, double lambda);

  // Returns the features whose weights are nonzero or may become nonzero by an update. They are in ascending
  // order. Returns all features if a new reference is due: if more than half of the features would be
  // returned, or if the calls since the reference have returned as many features as there are. residual: r of
  // this rank's samples. Collective. Errors: CommError.
  std::vector<int64_t> candidates(const std::vector<double>& residual, const std::vector<double>& weights);
  // Makes r the reference. products: x_jᵀr of all features.
  void renew(const std::vector<double>& residual, const std::vector<double>& products);

 private:
  const LassoProblem& problem_;
  RankSums& sums_;
  const double limit_;             // nλ
  std::vector<double> reference_;  // r₀ of this rank's samples
  std::vector<double> products_;   // c_j
  std::vector<double> norms_;      // ‖x_j‖
  int64_t returned_ = 0;           // features since the reference
};

}  // namespace starling
