#include "starling/mcmc/random_walk.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr int64_t kTenths = 10;          // parts of the warm-up. Each but the last ends with a covariance
constexpr double kDiagonalShare = 1e-6;  // of each variance, which the diagonal gets in addition
constexpr double kFirstDeviation = 0.1;  // of proposals before the first covariance

}  // namespace

RandomWalkChain::RandomWalkChain(const ChainOptions& options, SubPosterior& density,
                                 std::vector<double> start, uint64_t key)
    : options_(options),
      density_(density),
      random_(key),
      x_(std::move(start)),
      lower_(x_.size()),
      spread_(x_.size(), /*whole=*/true) {
  log_density_ = density_.log_density(x_, {});
  if (!std::isfinite(log_density_))
    throw Error(ErrorCode::kNumeric, "the density is 0 where the chains begin; give another start()");
  for (size_t i = 0; i < x_.size(); ++i) lower_(i, i) = kFirstDeviation;
  log_scale_ = std::log(2.38 / std::sqrt(static_cast<double>(x_.size())));
}

void RandomWalkChain::advance() {
  const size_t d = x_.size();
  std::vector<double> z(d), proposal = x_;
  for (double& number : z) number = random_.normal();
  const double scale = std::exp(log_scale_);
  for (size_t i = 0; i < d; ++i)
    for (size_t j = 0; j <= i; ++j) proposal[i] += scale * lower_(i, j) * z[j];
  const double proposed = density_.log_density(proposal, {});
  const double acceptance = std::exp(std::min(0.0, proposed - log_density_));
  const bool accepts = random_.uniform() < acceptance;
  if (accepts) {
    x_ = std::move(proposal);
    log_density_ = proposed;
  }
  ++transitions_;
  if (transitions_ <= options_.warmup) {
    adapt(acceptance);
  } else if (accepts) {
    ++accepted_;
  }
}

// After each transition of the warm-up.
void RandomWalkChain::adapt(double acceptance) {
  const double target = x_.size() == 1 ? 0.44 : 0.234;
  adapted_ += 1;
  log_scale_ += (acceptance - target) / std::pow(adapted_, 0.6);
  spread_.add(x_);
  const int64_t every = std::max<int64_t>(1, options_.warmup / kTenths);
  // The last tenth finds the scale for the last covariance.
  if (transitions_ % every == 0 && transitions_ + every <= options_.warmup) take_covariance();
}

void RandomWalkChain::take_covariance() {
  const size_t d = x_.size();
  if (spread_.count() < 2 * static_cast<double>(d) + 2) return;
  SquareMatrix covariance = spread_.covariance();
  for (size_t i = 0; i < d; ++i) covariance(i, i) *= 1 + kDiagonalShare;
  const auto lower = cholesky(covariance);
  if (!lower) return;  // the chain has not moved
  lower_ = *lower;
  log_scale_ = std::log(2.38 / std::sqrt(static_cast<double>(d)));
  adapted_ = 0;
  // The way from the start to the density's bulk would widen the covariance.
  if (transitions_ <= options_.warmup / 2) spread_.clear();
}

ChainReport RandomWalkChain::report() const {
  return {.draws = static_cast<double>(std::max<int64_t>(0, transitions_ - options_.warmup)),
          .accepted = static_cast<double>(accepted_),
          .evaluations = static_cast<double>(density_.evaluations()),
          .step = std::exp(log_scale_)};
}

void RandomWalkChain::list(ChainState& state) {
  int64_t drawn = random_.drawn(), evaluations = density_.evaluations();
  for (int64_t* counter : {&transitions_, &accepted_, &drawn, &evaluations}) state.counter(*counter);
  random_.go_on_from(drawn);
  density_.count_from(evaluations);
  state.numbers(x_);
  state.number(log_density_);
  state.numbers(lower_.values);
  state.number(log_scale_);
  state.counter(adapted_);
  spread_.list(state);
  state.end();
}

std::vector<double> RandomWalkChain::state() const {
  std::vector<double> numbers;
  ChainState state(numbers);
  const_cast<RandomWalkChain*>(this)->list(state);  // writes, and changes nothing
  return numbers;
}

void RandomWalkChain::restore(std::span<const double> numbers) {
  ChainState state(numbers);
  list(state);
}

}  // namespace starling
