#include "starling/mcmc/hmc.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr double kDivergence = 1000;        // an energy error
constexpr int64_t kShortestScaling = 40;    // a warm-up that is shorter finds no variances
constexpr int64_t kMostUnscaledSteps = 16;  // while the variances are not known
constexpr int kMostDoublings = 100;         // of the first step size

}  // namespace

HmcChain::HmcChain(const ChainOptions& options, SubPosterior& density, std::vector<double> start,
                   uint64_t key)
    : options_(options),
      density_(density),
      random_(key),
      variances_(start.size(), 1.0),
      spread_(start.size(), /*whole=*/false) {
  at_.x = std::move(start);
  at_.gradient.resize(at_.x.size());
  evaluate(at_);
  if (!std::isfinite(at_.log_density))
    throw Error(ErrorCode::kNumeric, "the density is 0 where the chains begin; give another start()");
  averaging_.begin(first_step());
}

void HmcChain::evaluate(Point& point) {
  point.log_density = density_.log_density(point.x, point.gradient);
}

double HmcChain::step() const {
  return transitions_ < options_.warmup ? averaging_.step() : averaging_.final_step();
}

// The largest number of steps of the next trajectory.
int64_t HmcChain::most_steps() const {
  const bool unscaled = options_.warmup >= kShortestScaling && transitions_ < options_.warmup / 2;
  return unscaled ? std::min(options_.most_steps, kMostUnscaledSteps) : options_.most_steps;
}

// Integrates from the present point with a fresh momentum.
HmcChain::Proposal HmcChain::trajectory(double step, int64_t steps) {
  const size_t d = at_.x.size();
  std::vector<double> momentum(d);
  double kinetic = 0;
  for (size_t i = 0; i < d; ++i) {
    const double z = random_.normal();
    momentum[i] = z / std::sqrt(variances_[i]);
    kinetic += z * z / 2;
  }
  const double energy = kinetic - at_.log_density;
  Proposal proposal{at_};
  Point& point = proposal.point;
  for (int64_t s = 0; s < steps; ++s) {
    for (size_t i = 0; i < d; ++i) {
      momentum[i] += step / 2 * point.gradient[i];
      point.x[i] += step * variances_[i] * momentum[i];
    }
    evaluate(point);
    if (!std::isfinite(point.log_density)) {  // density 0
      proposal.acceptance = 0;
      return proposal;
    }
    kinetic = 0;
    for (size_t i = 0; i < d; ++i) {
      momentum[i] += step / 2 * point.gradient[i];
      kinetic += momentum[i] * momentum[i] * variances_[i] / 2;
    }
    const double error = kinetic - point.log_density - energy;
    proposal.acceptance = std::exp(std::min(0.0, -error));
    proposal.diverged = !(error < kDivergence);
    if (proposal.diverged) {
      proposal.acceptance = 0;
      break;
    }
  }
  return proposal;
}

// Returns a step size with which one step is accepted with probability 1/2, up to a factor of 2 (Hoffman and
// Gelman 2014, algorithm 4).
double HmcChain::first_step() {
  double step = 1;
  const bool grows = trajectory(step, 1).acceptance > 0.5;
  for (int i = 0; i < kMostDoublings; ++i) {
    const double next = grows ? 2 * step : step / 2;
    if ((trajectory(next, 1).acceptance > 0.5) != grows) return grows ? step : next;
    step = next;
  }
  return step;
}

void HmcChain::advance() {
  const double step = this->step();
  const double jitter = 0.5 + random_.uniform();
  const double wanted = std::round(jitter * options_.length / step);
  // A step size that is not finite gives NaN, which std::clamp() would return.
  const auto most = static_cast<double>(most_steps());
  const auto steps = static_cast<int64_t>(wanted >= 1 ? std::min(wanted, most) : 1);
  Proposal proposal = trajectory(step, steps);
  const bool accepts = random_.uniform() < proposal.acceptance;
  if (accepts) at_ = std::move(proposal.point);
  if (transitions_ < options_.warmup) {
    ++transitions_;
    adapt(proposal.acceptance);
    return;
  }
  ++transitions_;
  accepted_ += accepts ? 1 : 0;
  diverged_ += proposal.diverged ? 1 : 0;
}

// After each transition of the warm-up.
void HmcChain::adapt(double acceptance) {
  averaging_.update(acceptance, options_.target_acceptance);
  const int64_t warmup = options_.warmup;
  if (warmup < kShortestScaling || transitions_ > 3 * warmup / 4) return;
  if (transitions_ > warmup / 4) spread_.add(at_.x);
  if (transitions_ == warmup / 2 || transitions_ == 3 * warmup / 4) take_variances();
}

void HmcChain::take_variances() {
  for (size_t i = 0; i < variances_.size(); ++i)
    if (const double variance = spread_.variance(i); variance > 0) variances_[i] = variance;
  spread_.clear();
  averaging_.begin(first_step());
}

ChainReport HmcChain::report() const {
  return {.draws = static_cast<double>(std::max<int64_t>(0, transitions_ - options_.warmup)),
          .accepted = static_cast<double>(accepted_),
          .diverged = static_cast<double>(diverged_),
          .evaluations = static_cast<double>(density_.evaluations()),
          .step = step()};
}

void HmcChain::list(ChainState& state) {
  int64_t drawn = random_.drawn(), evaluations = density_.evaluations();
  for (int64_t* counter : {&transitions_, &accepted_, &diverged_, &drawn, &evaluations})
    state.counter(*counter);
  random_.go_on_from(drawn);
  density_.count_from(evaluations);
  state.numbers(at_.x);
  state.numbers(at_.gradient);
  state.number(at_.log_density);
  state.positive(variances_);
  for (double* number : {&averaging_.mu, &averaging_.log_step, &averaging_.log_mean, &averaging_.error})
    state.number(*number);
  state.counter(averaging_.count);
  spread_.list(state);
  state.end();
}

std::vector<double> HmcChain::state() const {
  std::vector<double> numbers;
  ChainState state(numbers);
  const_cast<HmcChain*>(this)->list(state);  // writes, and changes nothing
  return numbers;
}

void HmcChain::restore(std::span<const double> numbers) {
  ChainState state(numbers);
  list(state);
}

}  // namespace starling
