// What both forms of factorization report at the end of an epoch and of a run.
#pragma once

#include "starling/factor/factorize.h"
#include "starling/factor/rating_stripe.h"

namespace starling {

// Returns the sum of `value` over the ranks. Collective.
inline double sum_over(Group& group, double value) {
  if (group.size() > 1) all_reduce(group, &value, 1, DataType::kFp64, ReduceOp::kSum);
  return value;
}

// Returns the root of the mean of `count` errors whose squares sum to `squared`. Errors: Error(kNumeric) if
// it is not finite.
double rmse_of(double squared, int64_t count);

// Returns the root mean square error over all ranks. Collective. squared and count: the sum of squares and
// the number of errors of this rank. Errors: Error(kNumeric) if it is not finite.
double rmse_over(Group& group, double squared, int64_t count);

// Fills in the errors of the factors, the number of ratings, the budgets and the sizes. Collective. training
// and testing: the sums of squared errors over the entries of this rank's stripe.
void add_report(FactorizeResult& result, const FactorizeOptions& options, const FactorizeParts& parts,
                const RatingStripe& stripe, double training, double testing, size_t element_bytes);

}  // namespace starling
