#include "starling/factor/factor_report.h"

#include <algorithm>
#include <cmath>

#include "starling/base/error.h"

namespace starling {

double rmse_of(double squared, int64_t count) {
  if (!std::isfinite(squared))
    throw Error(ErrorCode::kNumeric,
                "the factorization diverged: its error is not finite; lower --lr, or raise --l2");
  return count > 0 ? std::sqrt(squared / static_cast<double>(count)) : 0;
}

double rmse_over(Group& group, double squared, int64_t count) {
  double sums[2] = {squared, static_cast<double>(count)};
  if (group.size() > 1) all_reduce(group, sums, 2, DataType::kFp64, ReduceOp::kSum);
  return rmse_of(sums[0], static_cast<int64_t>(sums[1]));
}

namespace {

void add_sizes(FactorizeResult& result, const FactorizeOptions& options, const FactorizeParts& parts,
               size_t element_bytes) {
  const double own = static_cast<double>(parts.budget.peak());
  result.peak_bytes.assign(parts.group.size(), own);
  if (parts.group.size() > 1) all_gather(parts.group, &own, result.peak_bytes.data(), 1, DataType::kFp64);
  const double numbers =
      static_cast<double>((parts.source.rows() + parts.source.columns()) * options.factors);
  result.matrix_bytes = static_cast<double>(parts.source.count()) * sizeof(Rating) +
                        numbers * static_cast<double>(element_bytes);
}

}  // namespace

void add_report(FactorizeResult& result, const FactorizeOptions& options, const FactorizeParts& parts,
                const RatingStripe& stripe, double training, double testing, size_t element_bytes) {
  result.train_rmse = rmse_over(parts.group, training, stripe.training_count());
  const double test_rmse = rmse_over(parts.group, testing, stripe.testing_count());
  if (sum_over(parts.group, static_cast<double>(stripe.testing_count())) > 0) result.test_rmse = test_rmse;
  result.ratings = static_cast<int64_t>(sum_over(parts.group, static_cast<double>(stripe.training_count())));
  add_sizes(result, options, parts, element_bytes);
}

}  // namespace starling
