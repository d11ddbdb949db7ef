// What both forms tell at the end of an epoch and of a run.
#pragma once

#include "starling/factor/factorize.h"
#include "starling/factor/rating_stripe.h"

namespace starling {

// Sum over the ranks.
inline double sum_over(Group& group, double value) {
  if (group.size() > 1) group.all_reduce(&value, 1, DataType::kFp64, ReduceOp::kSum);
  return value;
}

// Root of the mean of errors that sum to `squared`. Error(kNumeric) where it is not finite.
double rmse_of(double squared, int64_t count);

// Collective. Root of the mean of errors that sum to `squared` here. Error(kNumeric) where it is not finite.
double rmse_over(Group& group, double squared, int64_t count);

// Collective. Fills in the errors of the factors, whose squares sum to `training` and `testing` over the entries of this rank's
// stripe, the count of ratings, and what the budgets and the sizes say.
void add_report(FactorizeResult& result, const FactorizeOptions& options, const FactorizeParts& parts,
                const RatingStripe& stripe, double training, double testing, size_t element_bytes);

}  // namespace starling
