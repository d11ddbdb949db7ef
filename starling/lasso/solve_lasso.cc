#include "starling/lasso/solve_lasso.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "starling/base/error.h"
#include "starling/job/job_checkpoint.h"
#include "starling/lasso/column_kernels.h"
#include "starling/lasso/feature_screen.h"
#include "starling/lasso/lasso_problem.h"
#include "starling/lasso/lasso_state.h"
#include "starling/lasso/rank_sums.h"

namespace starling {
namespace {

constexpr double kDivergence = 1e3;        // P above this multiple of P(0)
constexpr double kRefresh = 0.5;           // a refresh follows when Σ |δβ| has fallen to this share
constexpr double kSettledShare = 0.03;     // a pass follows when Σ |δβ| is this share of the first refresh
constexpr int64_t kLeastRounds = 8;        // between two refreshes
constexpr int64_t kMostCycles = 4;         // updates between two passes, as a multiple of the features
constexpr double kFirstSettled = 0.1;      // of the tolerance: the change that ends the first inner loop
constexpr double kNextSettled = 0.1;       // factor for each later inner loop
constexpr double kLeastSettled = 1e-6;     // share of P(0) in place of a tolerance of 0
constexpr double kLeastChange = 1e-28;     // share of P(0): smaller changes are rounding
constexpr int64_t kMostUpdates = 1 << 14;  // of a round, whose pairs take 1 GiB

class LassoRun {
 public:
  LassoRun(const LassoOptions& options, const LassoParts& parts)
      : options_(options),
        parts_(parts),
        data_(parts.data),
        begin_(parts.clock.now()),
        hash_(hash_over_ranks()),
        sums_(parts.group),
        problem_(parts.data, sums_, options.intercept),
        lambda_(options.lambda > 0 ? options.lambda : options.lambda_share * problem_.lambda_max()),
        tolerance_(options.tolerance * problem_.objective_at_zero()),
        screen_(problem_, sums_, lambda_),
        correlations_(parts.data, problem_.squares(), sums_, std::max<int64_t>(4096, options.updates)),
        state_(parts.data.features, options.exploration, parts.data.targets),
        checkpoint_(parts.group, checkpoint_options()) {}

  LassoResult run() {
    LassoResult result;
    result.lambda = lambda_;
    result.lambda_max = problem_.lambda_max();
    result.objective_at_zero = problem_.objective_at_zero();
    if (const auto found = checkpoint_.find()) {
      agree_on_success(parts_.group, [&] { state_.take(checkpoint_, *found, data_); });
      result.resumed_from = found->step;
      if (parts_.on_resumed && parts_.group.rank() == 0) parts_.on_resumed(found->step);
      if (state_.since_pass == 0) look();  // the checkpoint was written after a pass
    } else {
      begin_at_zero();
    }
    result.end = rounds();
    result.seconds = to_seconds(parts_.clock.now() - begin_);
    if (result.end != LassoEnd::kDiverged) {  // the checkpoint before a divergence stays
      save();
      if (state_.since_pass > 0) pass();
    }
    result.last = last_;
    result.last.seconds = result.seconds;
    result.pairs = correlations_.computed();
    result.looked = looked_;
    result.schedule_seconds = schedule_seconds_;
    result.weights = state_.weights;
    result.intercept = problem_.intercept_of(state_.weights);
    return result;
  }

 private:
  uint64_t hash_over_ranks() const {
    if (options_.checkpoint.empty()) return 0;
    const uint64_t own = hash_of(data_);
    std::vector<uint64_t> all(static_cast<size_t>(parts_.group.size()));
    all_gather(parts_.group, &own, all.data(), sizeof(own), DataType::kUint8);
    return std::accumulate(all.begin(), all.end(), uint64_t{0});
  }

  JobCheckpointOptions checkpoint_options() const {
    return {.folder = options_.checkpoint,
            .job = "lasso",
            .problem = {{"data", fmt::format("{} samples, {} features, hash {:x}", data_.samples,
                                             data_.features, hash_)},
                        {"lambda", fmt::format("{}", options_.lambda)},
                        {"lambda-share", fmt::format("{}", options_.lambda_share)},
                        {"intercept", options_.intercept ? "yes" : "no"},
                        {"schedule", word_of(options_.schedule)},
                        {"updates", std::to_string(options_.updates)},
                        {"rho", fmt::format("{}", options_.limit)},
                        {"exploration", fmt::format("{}", options_.exploration)},
                        {"seed", std::to_string(options_.seed)}}};
  }

  bool by_priority() const {
    return options_.schedule == ScheduleKind::kStrads || options_.schedule == ScheduleKind::kUnchecked;
  }

  // With zero weights, r is y, so that x_jᵀr is known already.
  void begin_at_zero() {
    std::vector<int64_t> all(static_cast<size_t>(data_.features));
    std::iota(all.begin(), all.end(), int64_t{0});
    take_progress(all, problem_.products());
    choose_watched();
    if (options_.schedule == ScheduleKind::kActiveSet)
      state_.settled =
          kFirstSettled * (tolerance_ > 0 ? tolerance_ : kLeastSettled * problem_.objective_at_zero());
    last_ = {.objective = problem_.objective_at_zero(), .gap = problem_.objective_at_zero()};
  }

  // Sets |δβ| of the features to what an update would change, and that of all others to 0. products: x_jᵀr of
  // the features.
  void take_progress(std::span<const int64_t> features, const std::vector<double>& products) {
    if (!by_priority()) return;
    std::vector<double> progress(state_.weights.size(), 0);
    for (size_t k = 0; k < features.size(); ++k) {
      const auto j = static_cast<size_t>(features[k]);
      progress[j] = std::abs(problem_.change_of(features[k], products[k], state_.weights[j], lambda_));
    }
    state_.priorities.assign(progress);
    state_.mass = state_.priorities.total();
    state_.since_look = 0;
  }

  // The features whose weights are nonzero or would become nonzero are watched until the next pass.
  void choose_watched() {
    if (!by_priority()) return;
    state_.active.clear();
    for (int64_t j = 0; j < data_.features; ++j)
      if (state_.weights[static_cast<size_t>(j)] != 0 || state_.priorities.progress(j) > 0)
        state_.active.push_back(j);
    state_.settled = 0;  // the first refresh sets it
  }

  LassoEnd rounds() {
    if (state_.since_pass == 0 && state_.rounds > 0 && (is_within() || still_)) return LassoEnd::kConverged;
    for (;;) {
      if (refresh_is_due()) refresh();
      if (pass_is_due()) {
        pass();
        if (converged()) return LassoEnd::kConverged;
      }
      if (state_.updates >= options_.max_updates) return LassoEnd::kUpdates;
      const Outcome outcome = round(next_features());
      if (!(outcome.objective <= kDivergence * problem_.objective_at_zero())) {
        note(outcome.objective);
        return LassoEnd::kDiverged;
      }
      if (options_.target && outcome.objective <= *options_.target) return LassoEnd::kTarget;
      if (outcome.stop) return LassoEnd::kStopped;
      if (options_.checkpoint_every > 0 && state_.rounds % options_.checkpoint_every == 0) save();
    }
  }

  bool is_within() const { return tolerance_ > 0 && last_.gap <= tolerance_; }

  // Returns whether the pass before ends the run. If so, a pass with an r that no rounding of updates has
  // changed confirms it.
  bool converged() {
    if (still_) return true;
    if (!is_within()) return false;
    state_.residual = data_.targets;
    for (int64_t j = 0; j < data_.features; ++j) {
      const double weight = state_.weights[static_cast<size_t>(j)];
      if (weight != 0) add_multiple(-weight, data_.column(j), state_.residual.data(), data_.count);
    }
    ++state_.passes;
    look();
    return is_within();
  }

  bool pass_is_due() const {
    // The active set looks after each inner loop.
    if (options_.schedule == ScheduleKind::kActiveSet) return state_.active.empty() && state_.since_pass > 0;
    if (by_priority() && state_.priorities.total() <= state_.settled) return true;
    return state_.since_pass >= kMostCycles * data_.features;
  }

  // The progress of some rounds is gone. What changed since the last look may have given watched features new
  // progress.
  bool refresh_is_due() const {
    return by_priority() && state_.since_look > 0 &&
           (state_.priorities.total() == 0 ||  // there is nothing to draw
            (state_.since_look >= kLeastRounds * options_.updates &&
             state_.priorities.total() <= kRefresh * state_.mass));
  }

  // Computes the progress of the watched features. Those that stay at zero are no longer watched. The first
  // refresh after a pass decides how far Σ |δβ| falls until the next pass. The sum that the pass found would
  // not do, because correlated features propose one change many times.
  void refresh() {
    pushed_.clear();
    push(state_.active);
    take_progress(state_.active, pushed_);
    looked_ += std::ssize(state_.active);
    if (state_.settled == 0) state_.settled = kSettledShare * state_.mass;
    std::erase_if(state_.active, [this](int64_t j) {
      return state_.weights[static_cast<size_t>(j)] == 0 && state_.priorities.progress(j) == 0;
    });
  }

  // Looks at all features, and reports it.
  void pass() {
    state_.since_pass = 0;
    ++state_.passes;
    look();
    if (parts_.on_pass && parts_.group.rank() == 0) parts_.on_pass(last_);
  }

  // Computes x_jᵀr of all features that the screen leaves. Sets the priorities, P and the gap.
  void look() {
    state_.l1 = 0;
    for (const double weight : state_.weights) state_.l1 += std::abs(weight);
    const std::vector<int64_t> features = screen_.candidates(state_.residual, state_.weights);
    const LassoProblem::Pass pass = problem_.pass(features, state_.residual, state_.l1, lambda_);
    if (std::ssize(features) == data_.features) screen_.renew(state_.residual, pass.products);
    looked_ += std::ssize(features);
    state_.bound = std::max(state_.bound, pass.bound);
    still_ = true;
    for (size_t k = 0; k < features.size() && still_; ++k)
      still_ = problem_.change_of(features[k], pass.products[k],
                                  state_.weights[static_cast<size_t>(features[k])], lambda_) == 0;
    take_progress(features, pass.products);
    choose_watched();
    note(pass.objective);
  }

  // Sets what is known now.
  void note(double objective) {
    last_ = {.rounds = state_.rounds,
             .updates = state_.updates,
             .passes = state_.passes,
             .nonzeros =
                 std::ssize(state_.weights) - std::count(state_.weights.begin(), state_.weights.end(), 0.0),
             .objective = objective,
             .gap = std::max(0.0, objective - state_.bound),
             .seconds = to_seconds(parts_.clock.now() - begin_)};
  }

  std::vector<int64_t> next_features() {
    const Nanoseconds start = parts_.clock.now();
    std::vector<int64_t> features = choose();
    schedule_seconds_ += to_seconds(parts_.clock.now() - start);
    return features;
  }

  std::vector<int64_t> choose() {
    const auto round = static_cast<uint64_t>(state_.rounds);
    switch (options_.schedule) {
      case ScheduleKind::kStrads:
      case ScheduleKind::kUnchecked:
        return draw_by_priority(options_.updates, options_.seed, round, state_.priorities);
      case ScheduleKind::kShotgun:
        return draw_uniform(data_.features, options_.updates, options_.seed, round, /*distinct=*/true);
      case ScheduleKind::kRandom:
        return draw_uniform(data_.features, options_.updates, options_.seed, round, /*distinct=*/false);
      case ScheduleKind::kCyclic: {
        std::vector<int64_t> features;
        for (int64_t i = 0; i < options_.updates; ++i)
          features.push_back((state_.updates + i) % data_.features);
        return features;
      }
      default: {
        if (!state_.active.empty()) return state_.active;
        std::vector<int64_t> features(static_cast<size_t>(data_.features));
        std::iota(features.begin(), features.end(), int64_t{0});
        return features;
      }
    }
  }

  // What a round learns.
  struct Outcome {
    double objective = 0;  // before its updates
    bool stop = false;     // some rank was asked to stop
  };

  Outcome round(const std::vector<int64_t>& features) {
    const double stop = parts_.stop != nullptr && parts_.stop->load() ? 1 : 0;
    const double square = dot_product(state_.residual.data(), state_.residual.data(), data_.count);
    const double l1 = state_.l1;
    pushed_.assign({square, stop});
    double largest = 0;
    if (is_sequential(options_.schedule)) {
      sums_.add(pushed_);
      largest = update_in_turn(features);
    } else {
      push(features);
      pull_together(features);
    }
    state_.updates += std::ssize(features);
    state_.since_pass += std::ssize(features);
    state_.since_look += std::ssize(features);
    ++state_.rounds;
    if (options_.schedule == ScheduleKind::kActiveSet) choose_sweep(largest);
    return {pushed_[0] / (2 * problem_.samples()) + lambda_ * l1, pushed_[1] > 0};
  }

  // Appends x_jᵀr of each feature to what is summed over the ranks, and sums it.
  void push(const std::vector<int64_t>& features) {
    const size_t first = pushed_.size();
    columns_.clear();
    for (const int64_t j : features) columns_.push_back(data_.column(j));
    pushed_.resize(first + features.size());
    dot_products(state_.residual.data(), columns_, data_.count, pushed_.data() + first);
    sums_.add(pushed_);
  }

  // Changes weights of the round at once. Refused changes are the expected progress of their features.
  void pull_together(const std::vector<int64_t>& features) {
    std::vector<ProposedChange> changes;
    for (size_t k = 0; k < features.size(); ++k) {
      const double weight = state_.weights[static_cast<size_t>(features[k])];
      const double change = problem_.change_of(features[k], pushed_[k + 2], weight, lambda_);
      changes.push_back({features[k], change});
      if (by_priority()) state_.priorities.set(features[k], std::abs(change));
    }
    if (options_.schedule == ScheduleKind::kStrads) {
      const Nanoseconds start = parts_.clock.now();
      changes = independent_changes(std::move(changes), options_.limit, correlations_);
      schedule_seconds_ += to_seconds(parts_.clock.now() - start);
    }
    for (const ProposedChange& change : changes) apply(change);
    if (parts_.on_round) parts_.on_round(changes);
  }

  // Returns the largest ‖x_j‖² δβ_j² / n, which bounds what one update gained.
  double update_in_turn(const std::vector<int64_t>& features) {
    double largest = 0;
    for (const int64_t j : features) {
      double product = dot_product(data_.column(j), state_.residual.data(), data_.count);
      sums_.add({&product, 1});
      const double weight = state_.weights[static_cast<size_t>(j)];
      const double change = problem_.change_of(j, product, weight, lambda_);
      apply({j, change});
      largest = std::max(largest, problem_.squares()[static_cast<size_t>(j)] * change * change);
    }
    return largest / problem_.samples();
  }

  // Makes the next refreshes look at a feature. The watched features ascend.
  void watch(int64_t feature) {
    const auto at = std::lower_bound(state_.active.begin(), state_.active.end(), feature);
    if (at == state_.active.end() || *at != feature) state_.active.insert(at, feature);
  }

  // Changes a weight and this rank's r.
  void apply(const ProposedChange& change) {
    if (change.change == 0) return;
    double& weight = state_.weights[static_cast<size_t>(change.feature)];
    const double next = weight + change.change;
    if (by_priority() && weight == 0) watch(change.feature);  // the draw explored it, or it was let go
    state_.l1 += std::abs(next) - std::abs(weight);
    weight = next;
    add_multiple(-change.change, data_.column(change.feature), state_.residual.data(), data_.count);
  }

  // Chooses the next sweep of the active set. largest: what the last sweep changed.
  void choose_sweep(double largest) {
    if (state_.active.empty()) {  // a complete cycle is done
      for (int64_t j = 0; j < data_.features; ++j)
        if (state_.weights[static_cast<size_t>(j)] != 0) state_.active.push_back(j);
      return;
    }
    if (largest > state_.settled && largest > kLeastChange * problem_.objective_at_zero()) return;
    state_.active.clear();
    state_.settled *= kNextSettled;
  }

  void save() {
    if (options_.checkpoint.empty()) return;
    CheckpointArrays arrays;
    state_.put(arrays, parts_.group.rank());
    checkpoint_.save(state_.rounds, arrays, state_.values());
  }

  const LassoOptions& options_;
  const LassoParts& parts_;
  LassoData& data_;
  const Nanoseconds begin_;
  const uint64_t hash_;  // of the data of all ranks, before it is centered; 0 without a checkpoint
  RankSums sums_;
  const LassoProblem problem_;
  const double lambda_;
  const double tolerance_;  // of the gap
  FeatureScreen screen_;
  Correlations correlations_;
  LassoState state_;
  JobCheckpoint checkpoint_;
  LassoProgress last_;
  bool still_ = false;          // no update would have changed a weight at the last pass
  std::vector<double> pushed_;  // ‖r‖², the wish to stop, and x_jᵀr of the round
  std::vector<const double*> columns_;
  int64_t looked_ = 0;  // features of passes and refreshes
  double schedule_seconds_ = 0;
};

}  // namespace

void check_lasso(const LassoOptions& options) {
  const auto require = [](bool good, const char* key, const std::string& what) {
    if (!good) throw ConfigError(key, what);
  };
  require(options.lambda >= 0 && std::isfinite(options.lambda), "--lambda",
          fmt::format("{}: give a number above 0", options.lambda));
  require(options.lambda_share > 0 && options.lambda_share < 1, "--lambda-share",
          fmt::format("{}: give a number between 0 and 1", options.lambda_share));
  require(options.tolerance >= 0 && std::isfinite(options.tolerance), "--tolerance",
          fmt::format("{}: give a number, at least 0", options.tolerance));
  require(!options.target || std::isfinite(*options.target), "--target", "give a finite number");
  require(options.updates >= 1 && options.updates <= kMostUpdates, "--updates",
          fmt::format("{}: give a number from 1 to {}", options.updates, kMostUpdates));
  require(options.limit > 0 && options.limit <= 1, "--rho",
          fmt::format("{}: give a number above 0, at most 1", options.limit));
  require(options.exploration >= 0 && options.exploration < 1, "--exploration",
          fmt::format("{}: give a number from 0 to below 1", options.exploration));
  require(options.checkpoint_every >= 0, "--checkpoint-every",
          fmt::format("{}: give at least 0", options.checkpoint_every));
}

LassoResult solve_lasso(const LassoOptions& options, const LassoParts& parts) {
  check_lasso(options);
  agree_on_success(parts.group, [&] { check_lasso_data(parts.data); });
  return LassoRun(options, parts).run();
}

}  // namespace starling
