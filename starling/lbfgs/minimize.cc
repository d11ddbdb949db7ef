#include "starling/lbfgs/minimize.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "starling/base/error.h"
#include "starling/lbfgs/two_loop.h"

namespace starling {
namespace {

constexpr int kFruitless = 10;  // iterations without a smaller objective and without a smaller gradient
// A decrease of this share of the objective is far above the rounding of a sum over all samples. If no step
// gives a decrease that the slope promises, its cause is then not rounding.
constexpr double kVisible = 1e-8;

class Minimizer {
 public:
  Minimizer(VectorMachine& machine, const MinimizeOptions& options, MinimizeState& state)
      : machine_(machine), options_(options), state_(state), history_(options.memory) {}

  void start() {
    if (!state_.started) {
      machine_.combine(kPoint, {});
      copy(kPoint, kTrial);
      note(evaluate());
      copy(kTrialGradient, kGradient);
      if (!std::isfinite(state_.objective) || !std::isfinite(state_.largest_gradient))
        throw Error(ErrorCode::kNumeric,
                    "the objective at the start is not finite: look for very large values in the data");
      state_.least_objective = state_.objective;
      state_.least_gradient = state_.largest_gradient;
      state_.started = true;
    }
    history_.restore(state_.slots);
    ask(history_.all_products());
  }

  // Makes one iteration. Returns the step t, or 0 if no step decreases the objective.
  double iterate() {
    double slope = choose_direction();
    LineResult result = search(slope);
    promised_ = -slope * first_step(slope);
    if (!result.found && !history_.slots().empty()) {  // the direction of steepest descent may still go down
      history_.clear();
      ask(history_.changed_products());
      slope = choose_direction();
      result = search(slope);
    }
    if (!result.found) return 0;
    accept();
    note(last_);
    count_fruitless();
    ++state_.iterations;
    state_.slots = history_.slots();
    return result.point.t;
  }

  // Returns true if the slope of the last iteration promised a decrease that fp64 shows, or is not a number.
  bool promised_decrease() const { return !(promised_ <= kVisible * std::abs(state_.objective)); }

 private:
  void copy(VectorId from, VectorId to) {
    const VectorTerm term{1, from};
    machine_.combine(to, {&term, 1});
  }
  void difference(VectorId a, VectorId b, VectorId to) {
    const std::array<VectorTerm, 2> terms = {VectorTerm{1, a}, VectorTerm{-1, b}};
    machine_.combine(to, terms);
  }
  void ask(const std::vector<VectorPair>& pairs) { history_.take(pairs, machine_.dots(pairs)); }
  double dot(VectorId a, VectorId b) {
    const VectorPair pair{a, b};
    return machine_.dots({&pair, 1}).front();
  }
  Evaluation evaluate() {
    ++state_.evaluations;
    return machine_.evaluate();
  }
  void note(const Evaluation& evaluation) {
    state_.objective = evaluation.objective;
    state_.largest_gradient = evaluation.largest_gradient;
  }

  void count_fruitless() {
    const bool better =
        state_.objective < state_.least_objective || state_.largest_gradient < state_.least_gradient;
    state_.fruitless = better ? 0 : state_.fruitless + 1;
    state_.least_objective = std::min(state_.least_objective, state_.objective);
    state_.least_gradient = std::min(state_.least_gradient, state_.largest_gradient);
  }

  // Sets d and returns its slope g·d. If rounding has made d point up, the pairs are forgotten.
  double choose_direction() {
    machine_.combine(kDirection, history_.direction());
    double slope = dot(kGradient, kDirection);
    if (slope < 0 || history_.slots().empty()) return slope;
    history_.clear();
    machine_.combine(kDirection, history_.direction());
    slope = dot(kGradient, kDirection);
    return slope;
  }

  // Without pairs, the length of d has no meaning. The first step then has at most the length 1.
  double first_step(double slope) const {
    return slope < 0 && history_.slots().empty() ? std::min(1.0, 1 / std::sqrt(-slope)) : 1;
  }

  LineResult search(double slope) {
    const LinePoint start{0, state_.objective, slope};
    if (!(slope < 0)) return {start, false, false};
    return wolfe_search(start, first_step(slope), options_.line, [&](double t) {
      const std::array<VectorTerm, 2> terms = {VectorTerm{1, kPoint}, VectorTerm{t, kDirection}};
      machine_.combine(kTrial, terms);
      last_ = evaluate();
      return LinePoint{t, last_.objective, dot(kTrialGradient, kDirection)};
    });
  }

  // Makes the trial point the current one and stores the pair.
  void accept() {
    const int slot = history_.free_slot();
    difference(kTrial, kPoint, s_of(slot));
    difference(kTrialGradient, kGradient, y_of(slot));
    copy(kTrial, kPoint);
    copy(kTrialGradient, kGradient);
    history_.add(slot);
    ask(history_.changed_products());
    if (!history_.newest_curves()) history_.drop_newest();
  }

  VectorMachine& machine_;
  const MinimizeOptions& options_;
  MinimizeState& state_;
  TwoLoop history_;
  Evaluation last_;
  double promised_ = 0;  // the decrease of the linear model in the first step of the last iteration
};

}  // namespace

MinimizeEnd minimize(VectorMachine& machine, const MinimizeOptions& options, MinimizeState& state,
                     const std::function<bool(const MinimizeStep&)>& after) {
  Minimizer minimizer(machine, options, state);
  minimizer.start();
  for (;;) {
    if (state.largest_gradient <= options.tolerance) return MinimizeEnd::kConverged;
    if (state.exhausted || state.fruitless >= kFruitless) return MinimizeEnd::kNoDecrease;
    if (state.iterations >= options.max_iterations) return MinimizeEnd::kIterations;
    const double step = minimizer.iterate();
    if (step == 0) {
      if (minimizer.promised_decrease()) return MinimizeEnd::kNoStep;
      state.exhausted = true;
      continue;
    }
    if (after && !after({state, step})) return MinimizeEnd::kStopped;
  }
}

}  // namespace starling
