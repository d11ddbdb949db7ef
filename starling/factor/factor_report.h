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

// Returns the root of the mean square of `count` errors whose squares sum to `squared`, or 0 if `count` is 0.
// Errors: Error(kNumeric) if `squared` is not finite.
double rmse_of(double squared, int64_t count);

// Returns the root mean square error over all ranks. Collective. squared and count: the sum of squares and
// the number of errors of this rank. Errors: Error(kNumeric) if the sum over the ranks is not finite.
double rmse_over(Group& group, double squared, int64_t count);

// Fills in train_rmse, test_rmse, ratings, peak_bytes and matrix_bytes of the result. Collective. training
// and testing: the sums of squared errors over the entries of this rank's stripe. Errors: those of
// rmse_over().
void add_report(FactorizeResult& result, const FactorizeOptions& options, const FactorizeParts& parts,
                const RatingStripe& stripe, double training, double testing, size_t element_bytes);

}  // namespace starling
