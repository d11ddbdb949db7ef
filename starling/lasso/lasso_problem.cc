#include "starling/lasso/lasso_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "starling/base/error.h"
#include "starling/lasso/column_kernels.h"

namespace starling {
namespace {

constexpr double kRoundingShare = 1e-14;  // of ‖y‖: changes of r that are rounding

}  // namespace

LassoProblem::LassoProblem(LassoData& data, RankSums& sums, bool intercept) : data_(data), sums_(sums) {
  if (intercept) center();
  const auto d = static_cast<size_t>(data.features);
  std::vector<double> all(2 * d + 1);
  for (size_t j = 0; j < d; ++j) {
    const double* column = data.column(static_cast<int64_t>(j));
    all[j] = dot_product(column, column, data.count);
    all[d + j] = dot_product(column, data.targets.data(), data.count);
  }
  all[2 * d] = dot_product(data.targets.data(), data.targets.data(), data.count);
  sums.add(all);
  squares_.assign(all.begin(), all.begin() + data.features);
  products_.assign(all.begin() + data.features, all.end() - 1);
  target_square_ = all.back();
  drop_constants();
  if (!(target_square_ > 0))
    throw DataError(fmt::format("{}: y is equal in all samples, so that no feature explains it", data.name));
  for (const double product : products_) lambda_max_ = std::max(lambda_max_, std::abs(product));
  lambda_max_ /= samples();
}

// Centering leaves rounding of a constant column. It counts as 0.
void LassoProblem::drop_constants() {
  if (means_.empty()) return;
  const double rounding = std::max(1e-13, samples() * 0x1p-53);  // of a mean, as a share
  const auto is_constant = [&](double square, double mean) {
    return square <= samples() * (rounding * mean) * (rounding * mean);
  };
  for (size_t j = 0; j < squares_.size(); ++j)
    if (is_constant(squares_[j], means_[j])) squares_[j] = products_[j] = 0;
  if (is_constant(target_square_, means_.back())) target_square_ = 0;
}

void LassoProblem::center() {
  means_.resize(static_cast<size_t>(data_.features) + 1);
  const auto sum_of = [this](const double* numbers) {
    return std::accumulate(numbers, numbers + data_.count, 0.0);
  };
  for (int64_t j = 0; j < data_.features; ++j) means_[static_cast<size_t>(j)] = sum_of(data_.column(j));
  means_.back() = sum_of(data_.targets.data());
  sums_.add(means_);
  for (double& mean : means_) mean /= samples();
  for (int64_t j = 0; j < data_.features; ++j) {
    const double mean = means_[static_cast<size_t>(j)];
    double* column = data_.columns.data() + j * data_.count;
    for (int64_t i = 0; i < data_.count; ++i) column[i] -= mean;
  }
  for (double& y : data_.targets) y -= means_.back();
}

double LassoProblem::intercept_of(const std::vector<double>& weights) const {
  if (means_.empty()) return 0;
  return means_.back() - std::inner_product(weights.begin(), weights.end(), means_.begin(), 0.0);
}

double LassoProblem::change_of(int64_t feature, double product, double weight, double lambda) const {
  const double square = squares_[static_cast<size_t>(feature)];
  if (!(square > 0)) return -weight;
  const double best = soft_threshold(product + square * weight, samples() * lambda) / square;
  const double change = best - weight;
  const bool rounding = square * change * change <= kRoundingShare * kRoundingShare * target_square_;
  return rounding && best != 0 ? 0 : change;
}

LassoProblem::Pass LassoProblem::pass(std::span<const int64_t> features, const std::vector<double>& residual,
                                      double l1, double lambda) const {
  const size_t d = features.size();
  Pass pass;
  pass.products.resize(d + 2);
  std::vector<const double*> columns(d);
  for (size_t j = 0; j < d; ++j) columns[j] = data_.column(features[j]);
  dot_products(residual.data(), columns, data_.count, pass.products.data());
  pass.products[d] = dot_product(residual.data(), residual.data(), data_.count);
  pass.products[d + 1] = dot_product(data_.targets.data(), residual.data(), data_.count);
  sums_.add(pass.products);
  const double square = pass.products[d], with_target = pass.products[d + 1];
  pass.products.resize(d);
  pass.residual_square = square;
  pass.objective = square / (2 * samples()) + lambda * l1;
  double largest = samples() * lambda;
  for (const double product : pass.products) largest = std::max(largest, std::abs(product));
  double s = square > 0 ? with_target / square : 0;
  if (largest > 0) s = std::clamp(s, -samples() * lambda / largest, samples() * lambda / largest);
  pass.bound = (2 * s * with_target - s * s * square) / (2 * samples());
  return pass;
}

}  // namespace starling
