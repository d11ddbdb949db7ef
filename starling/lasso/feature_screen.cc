#include "starling/lasso/feature_screen.h"

#include <cmath>
#include <numeric>

#include "starling/lasso/column_kernels.h"

namespace starling {
namespace {

constexpr double kRounding = 1e-10;  // of a product, as a share of ‖x_j‖ ‖r‖

}  // namespace

FeatureScreen::FeatureScreen(const LassoProblem& problem, RankSums& sums, double lambda)
    : problem_(problem),
      sums_(sums),
      limit_(problem.samples() * lambda),
      reference_(problem.data().targets),
      products_(problem.products()) {
  for (const double square : problem.squares()) norms_.push_back(std::sqrt(square));
}

std::vector<int64_t> FeatureScreen::candidates(const std::vector<double>& residual,
                                               const std::vector<double>& weights) {
  // The squares of r₀ and of its distance from r, over all ranks.
  double squares[2] = {dot_product(reference_.data(), reference_.data(), std::ssize(reference_)),
                       square_of_difference(residual.data(), reference_.data(), std::ssize(reference_))};
  sums_.add(squares);
  const double drift = std::sqrt(squares[1]);
  const double reach = drift + kRounding * (std::sqrt(squares[0]) + drift);
  std::vector<int64_t> features;
  for (size_t j = 0; j < norms_.size(); ++j) {
    // A bound that is not a number is no bound.
    const bool stays = std::abs(products_[j]) + norms_[j] * reach < limit_;
    if (weights[j] != 0 || !stays) features.push_back(static_cast<int64_t>(j));
  }
  returned_ += std::ssize(features);
  if (2 * features.size() > norms_.size() || returned_ > std::ssize(norms_)) {
    features.resize(norms_.size());
    std::iota(features.begin(), features.end(), int64_t{0});
  }
  return features;
}

void FeatureScreen::renew(const std::vector<double>& residual, const std::vector<double>& products) {
  reference_ = residual;
  products_ = products;
  returned_ = 0;
}

}  // namespace starling
