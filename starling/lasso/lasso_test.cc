// Compares the lasso by scheduled updates with coordinate descent in plain loops, the dependency check with
// all pairs, its bytes with a formula, and resumed runs with runs that were not interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/comm/bootstrap.h"
#include "starling/job/job_checkpoint.h"
#include "starling/lasso/column_kernels.h"
#include "starling/lasso/feature_screen.h"
#include "starling/lasso/lasso_state.h"
#include "starling/lasso/solve_lasso.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::Contains;
using testing::HasSubstr;

GeneratedBlocks small_blocks() {
  return {.samples = 90, .features = 120, .block = 10, .nonzeros = 12, .noise = 0.5, .seed = 4};
}

LassoOptions usual_lasso() {
  LassoOptions options;
  options.tolerance = 1e-12;
  options.updates = 16;
  options.limit = 0.5;
  options.seed = 9;
  return options;
}

// Returns the code of the Error that a call throws, or kInternal if there is none.
ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kInternal;
}

// Returns the path of the part of a checkpoint that one rank has written.
std::string only_part_of(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("part-")) return entry.path();
  return "";
}

struct SolvedLasso {
  LassoResult result;  // of rank 0
  uint64_t sent = 0;   // by the groups of all ranks
};

// Solves with ranks that are threads. `change` may change what a rank is given.
SolvedLasso solve_on(int ranks, const LassoOptions& options, const GeneratedBlocks& blocks,
                     const std::function<void(int, LassoParts&)>& change = {}) {
  SolvedLasso solved;
  std::mutex mutex;
  const SystemClock clock;
  run_ranks(ranks, [&](const ThreadRank& self) {
    const auto group = ranks == 1 ? make_single_group() : join_group(*self.store, self.rank, ranks);
    LassoData data = make_lasso_blocks(blocks, self.rank, ranks);
    LassoParts parts{.group = *group, .data = data, .clock = clock};
    if (change) change(self.rank, parts);
    const uint64_t before = group->traffic().sent();
    const LassoResult result = solve_lasso(options, parts);
    const std::lock_guard lock(mutex);
    solved.sent += group->traffic().sent() - before;
    if (self.rank == 0) solved.result = result;
  });
  return solved;
}

// The problem as rows of numbers, centered in plain loops.
struct NaiveLasso {
  std::vector<std::vector<double>> x;  // by feature
  std::vector<double> y;

  explicit NaiveLasso(const GeneratedBlocks& blocks, bool centered = true) {
    const LassoData data = make_lasso_blocks(blocks, 0, 1);
    for (int64_t j = 0; j < data.features; ++j) x.emplace_back(data.column(j), data.column(j) + data.count);
    y = data.targets;
    if (!centered) return;
    for (auto& column : x) center(column);
    center(y);
  }
  static void center(std::vector<double>& column) {
    double mean = 0;
    for (const double value : column) mean += value / static_cast<double>(column.size());
    for (double& value : column) value -= mean;
  }
  double product(size_t j, size_t k) const {
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += x[j][i] * x[k][i];
    return sum;
  }
  double correlation(size_t j, size_t k) const {
    return std::abs(product(j, k)) / std::sqrt(product(j, j) * product(k, k));
  }
  std::vector<double> residual(const std::vector<double>& weights) const {
    std::vector<double> r = y;
    for (size_t j = 0; j < x.size(); ++j)
      for (size_t i = 0; i < r.size(); ++i) r[i] -= weights[j] * x[j][i];
    return r;
  }
  double with_residual(size_t j, const std::vector<double>& r) const {
    double sum = 0;
    for (size_t i = 0; i < r.size(); ++i) sum += x[j][i] * r[i];
    return sum;
  }
  double objective(const std::vector<double>& weights, double lambda) const {
    double sum = 0;
    for (const double value : residual(weights)) sum += value * value / (2 * static_cast<double>(y.size()));
    for (const double weight : weights) sum += lambda * std::abs(weight);
    return sum;
  }
  // The minimum by coordinate descent.
  std::vector<double> minimum(double lambda) const {
    std::vector<double> weights(x.size(), 0), r = y;
    const double threshold = lambda * static_cast<double>(y.size());
    for (int sweep = 0; sweep < 3000; ++sweep) {
      for (size_t j = 0; j < x.size(); ++j) {
        const double square = product(j, j), z = with_residual(j, r) + square * weights[j];
        const double next = (z > threshold ? z - threshold : z < -threshold ? z + threshold : 0) / square;
        for (size_t i = 0; i < r.size(); ++i) r[i] -= (next - weights[j]) * x[j][i];
        weights[j] = next;
      }
    }
    return weights;
  }
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b.at(i)));
  return largest;
}

TEST(Lasso, EverySequentialAndCheckedScheduleFindsTheMinimum) {
  const NaiveLasso naive(small_blocks());
  std::vector<double> exact;
  for (const char* word : {"strads", "random", "cyclic", "active-set"}) {
    LassoOptions options = usual_lasso();
    options.schedule = parse_schedule(word);
    // A collective for each update is slow, so only one schedule has several ranks.
    const LassoResult result =
        solve_on(options.schedule == ScheduleKind::kStrads ? 2 : 1, options, small_blocks()).result;
    if (exact.empty()) exact = naive.minimum(result.lambda);
    EXPECT_EQ(result.end, LassoEnd::kConverged) << word;
    EXPECT_NEAR(result.lambda, 0.1 * result.lambda_max, 1e-15);
    const double minimum = naive.objective(exact, result.lambda);
    EXPECT_NEAR(result.last.objective, minimum, 1e-11 * minimum) << word;
    EXPECT_LT(largest_difference(result.weights, exact), 1e-4) << word;
    // The gap bounds the distance to the minimum.
    EXPECT_LE(result.last.objective - minimum, result.last.gap + 1e-14) << word;
    EXPECT_LE(result.last.gap, 1e-12 * result.objective_at_zero) << word;
    // The conditions of Karush, Kuhn and Tucker.
    const std::vector<double> r = naive.residual(result.weights);
    const double bound = result.lambda * static_cast<double>(r.size());
    for (size_t j = 0; j < result.weights.size(); ++j) {
      const double product = naive.with_residual(j, r), weight = result.weights[j];
      EXPECT_LE(std::abs(product), bound * (1 + 1e-4)) << word << " " << j;
      if (weight != 0) {
        EXPECT_NEAR(product, std::copysign(bound, weight), 1e-4 * bound) << word << " " << j;
      }
    }
  }
}

TEST(Lasso, RanksGiveTheWeightsOfOneProcess) {
  LassoOptions options = usual_lasso();
  const LassoResult one = solve_on(1, options, small_blocks()).result;
  for (const int ranks : {2, 3, 5}) {
    const LassoResult several = solve_on(ranks, options, small_blocks()).result;
    EXPECT_EQ(several.last.updates, one.last.updates) << ranks;
    EXPECT_LT(largest_difference(several.weights, one.weights), 1e-10) << ranks;
    EXPECT_NEAR(several.intercept, one.intercept, 1e-10) << ranks;
  }
}

// The equations of one round after another in plain loops, from the features that the run drew.
TEST(Lasso, ARoundIsThatOfThePaper) {
  const NaiveLasso naive(small_blocks());
  LassoOptions options = usual_lasso();
  options.max_updates = 40 * options.updates;
  std::vector<std::vector<ProposedChange>> rounds;
  const LassoResult result = solve_on(2, options, small_blocks(), [&](int rank, LassoParts& parts) {
                               if (rank == 0)
                                 parts.on_round = [&](const auto& changes) { rounds.push_back(changes); };
                             }).result;
  ASSERT_EQ(rounds.size(), 40u);
  std::vector<double> weights(naive.x.size(), 0);
  const double threshold = result.lambda * static_cast<double>(naive.y.size());
  size_t together = 0;
  for (const auto& changes : rounds) {
    const std::vector<double> r = naive.residual(weights);
    std::vector<double> next = weights;
    together = std::max(together, changes.size());
    for (const ProposedChange& change : changes) {
      const auto j = static_cast<size_t>(change.feature);
      const double z = naive.with_residual(j, r) + naive.product(j, j) * weights[j];
      const double best = (z > threshold    ? z - threshold
                           : z < -threshold ? z + threshold
                                            : 0) /
                          naive.product(j, j);
      EXPECT_NEAR(change.change, best - weights[j], 1e-10);
      next[j] = weights[j] + change.change;
      for (const ProposedChange& other : changes) {  // the dependency check, for all pairs
        const auto k = static_cast<size_t>(other.feature);
        if (k != j) {
          EXPECT_LT(naive.correlation(j, k), options.limit) << j << " " << k;
        }
      }
    }
    weights = next;
  }
  EXPECT_GT(together, 4u) << "a round changes several weights at once";
  EXPECT_LT(largest_difference(weights, result.weights), 1e-10);
}

TEST(Lasso, UncheckedUpdatesDivergeWhereCheckedOnesConverge) {
  LassoOptions options = usual_lasso();
  options.tolerance = 1e-8;
  EXPECT_EQ(solve_on(2, options, small_blocks()).result.end, LassoEnd::kConverged);
  options.schedule = ScheduleKind::kUnchecked;
  options.max_updates = 200'000;
  const LassoResult result = solve_on(2, options, small_blocks()).result;
  EXPECT_EQ(result.end, LassoEnd::kDiverged);
  EXPECT_GT(result.last.rounds, 0);
  EXPECT_EQ(result.last.updates, 16 * result.last.rounds);
  EXPECT_GT(result.last.objective, 1000 * result.objective_at_zero);
}

TEST(Lasso, BytesAreThoseOfThePage) {
  for (const char* word : {"strads", "cyclic"}) {
    LassoOptions options = usual_lasso();
    options.schedule = parse_schedule(word);
    options.tolerance = 1e-6;
    options.max_updates = 1000;
    const int p = 3;
    const SolvedLasso solved = solve_on(p, options, small_blocks());
    const LassoResult& result = solved.result;
    const uint64_t d = 120;
    const uint64_t numbers = (3 * d + 2) + result.last.passes * 4 + result.looked + 2 * result.last.rounds +
                             result.last.updates + result.pairs;
    // agree_on_success() gathers 16 bytes per rank, once.
    EXPECT_EQ(solved.sent, uint64_t(p * (p - 1)) * (8 * numbers + 16)) << word;
  }
}

TEST(Lasso, AResumedRunEndsWithEqualBits) {
  for (const char* word : {"strads", "active-set", "cyclic"}) {
    LassoOptions options = usual_lasso();
    options.tolerance = 1e-5;
    options.schedule = parse_schedule(word);
    const LassoResult whole = solve_on(2, options, small_blocks()).result;
    for (const int ranks : {2, 3}) {
      const TempDir folder;
      options.checkpoint = folder.file("ck");
      options.checkpoint_every = 20;
      options.max_updates = whole.last.updates / 2;
      const LassoResult first = solve_on(2, options, small_blocks()).result;
      EXPECT_EQ(first.end, LassoEnd::kUpdates);
      options.max_updates = LassoOptions{}.max_updates;
      const LassoResult rest = solve_on(ranks, options, small_blocks()).result;
      EXPECT_EQ(rest.resumed_from, first.last.rounds);
      if (ranks == 2) {
        EXPECT_EQ(rest.weights, whole.weights) << word;
        EXPECT_EQ(rest.last.updates, whole.last.updates) << word;
      } else {
        EXPECT_NEAR(rest.last.objective, whole.last.objective, 1e-5 * whole.objective_at_zero) << word;
      }
      LassoOptions other = options;
      other.limit = 0.4;
      EXPECT_EQ(code_of([&] { solve_on(1, other, small_blocks()); }), ErrorCode::kConfig);
      other = options;
      other.intercept = false;
      EXPECT_EQ(code_of([&] { solve_on(1, other, small_blocks()); }), ErrorCode::kConfig);
    }
  }
}

// Each run makes one round, and goes on from the checkpoint of the run before.
TEST(Lasso, AStopInEachRoundChangesNothing) {
  const std::atomic<bool> stop = true;
  for (const char* word : {"strads", "shotgun", "active-set"}) {
    LassoOptions options = usual_lasso();
    options.tolerance = 0.1;
    options.schedule = parse_schedule(word);
    options.updates = 4;
    options.lambda_share = 0.5;
    const LassoResult whole = solve_on(1, options, small_blocks()).result;
    ASSERT_EQ(whole.end, LassoEnd::kConverged) << word;
    const TempDir folder;
    options.checkpoint = folder.file("ck");
    LassoResult last;
    int64_t runs = 0;
    do {
      last = solve_on(1, options, small_blocks(), [&](int, LassoParts& parts) { parts.stop = &stop; }).result;
    } while (last.end == LassoEnd::kStopped && ++runs < 2000);
    EXPECT_EQ(last.end, LassoEnd::kConverged) << word;
    EXPECT_EQ(runs, whole.last.rounds) << word;
    EXPECT_EQ(last.last.updates, whole.last.updates) << word;
    EXPECT_EQ(last.last.passes, whole.last.passes) << word;
    EXPECT_EQ(last.weights, whole.weights) << word;
    // A run of a folder whose run has converged changes nothing.
    const LassoResult again = solve_on(1, options, small_blocks()).result;
    EXPECT_EQ(again.end, LassoEnd::kConverged) << word;
    EXPECT_EQ(again.weights, whole.weights) << word;
    EXPECT_EQ(again.last.rounds, whole.last.rounds) << word;
    EXPECT_EQ(again.last.gap, whole.last.gap) << word;
    EXPECT_EQ(again.last.objective, whole.last.objective) << word;
  }
}

TEST(Lasso, ADivergedRunKeepsTheCheckpointBefore) {
  const TempDir folder;
  LassoOptions options = usual_lasso();
  options.schedule = ScheduleKind::kUnchecked;
  options.checkpoint = folder.file("ck");
  options.checkpoint_every = 0;
  options.max_updates = 16;
  EXPECT_EQ(solve_on(1, options, small_blocks()).result.end, LassoEnd::kUpdates);
  options.max_updates = 200'000;
  for (int run = 0; run < 2; ++run) {
    const LassoResult result = solve_on(1, options, small_blocks()).result;
    EXPECT_EQ(result.end, LassoEnd::kDiverged);
    EXPECT_EQ(result.resumed_from, 1);
  }
}

TEST(Lasso, ATargetEndsARunWhoseToleranceIsZero) {
  LassoOptions options = usual_lasso();
  const double minimum = solve_on(1, options, small_blocks()).result.last.objective;
  options.tolerance = 0;
  options.target = minimum * (1 + 1e-6);
  options.max_updates = 1'000'000;
  for (const char* word : {"strads", "random", "cyclic", "active-set"}) {
    options.schedule = parse_schedule(word);
    const LassoResult result = solve_on(1, options, small_blocks()).result;
    EXPECT_EQ(result.end, LassoEnd::kTarget) << word;
    EXPECT_LE(result.last.objective, *options.target * (1 + 1e-12)) << word;
    EXPECT_GE(result.last.objective, minimum * (1 - 1e-9)) << word;
  }
}

TEST(Lasso, AToleranceOfZeroEndsWhenNoUpdateChangesAWeight) {
  LassoOptions options = usual_lasso();
  const double minimum = solve_on(1, options, small_blocks()).result.last.objective;
  options.tolerance = 0;
  options.max_updates = 3'000'000;
  for (const char* word : {"strads", "random", "cyclic", "active-set"}) {
    options.schedule = parse_schedule(word);
    const LassoResult result = solve_on(1, options, small_blocks()).result;
    EXPECT_EQ(result.end, LassoEnd::kConverged) << word;
    EXPECT_LE(result.last.objective, minimum * (1 + 1e-12)) << word;
    EXPECT_LE(result.last.gap, 1e-11 * result.objective_at_zero) << word;
  }
}

// A refresh looks at watched features only. Exploration makes nonzero what no pass has proposed.
TEST(Lasso, AnExploredFeatureIsWatched) {
  LassoOptions options = usual_lasso();
  options.exploration = 0.5;
  const auto group = make_single_group();
  for (options.max_updates = 64; options.max_updates <= 640; options.max_updates += 64) {
    const TempDir folder;
    options.checkpoint = folder.file("ck");
    options.checkpoint_every = 0;
    solve_on(1, options, small_blocks());
    const auto part = CheckpointArrays::parse("part", read_bytes(only_part_of(options.checkpoint)),
                                              options.max_updates / 16, 0, 1);
    const std::vector<double> weights = part.get<double>("weights");
    const std::vector<int64_t> active = part.get<int64_t>("active");
    EXPECT_TRUE(std::is_sorted(active.begin(), active.end()));
    for (size_t j = 0; j < weights.size(); ++j) {
      if (weights[j] != 0) {
        EXPECT_THAT(active, Contains(static_cast<int64_t>(j))) << options.max_updates;
      }
    }
  }
}

TEST(Lasso, TheActiveSetBeginsWithACycleAndEndsInnerLoopsWithoutATolerance) {
  LassoOptions options = usual_lasso();
  options.schedule = ScheduleKind::kActiveSet;
  options.max_updates = 1;
  const LassoResult one = solve_on(1, options, small_blocks()).result;
  EXPECT_EQ(one.last.rounds, 1);
  EXPECT_EQ(one.last.passes, 1) << "the pass at the end";
  options.max_updates = 20'000;
  std::vector<int64_t> first;  // the rounds before the first pass
  for (const double tolerance : {1e-6, 0.0}) {
    options.tolerance = tolerance;
    std::vector<int64_t> passes;
    solve_on(1, options, small_blocks(), [&](int, LassoParts& parts) {
      parts.on_pass = [&](const LassoProgress& at) { passes.push_back(at.rounds); };
    });
    ASSERT_FALSE(passes.empty());
    first.push_back(passes[0]);
  }
  EXPECT_EQ(first[0], first[1]);
}

TEST(Lasso, ZeroWeightsAreTheMinimumOfALargePenalty) {
  LassoOptions options = usual_lasso();
  options.lambda = 1e6;
  options.exploration = 0;
  for (const double tolerance : {1e-6, 0.0}) {
    options.tolerance = tolerance;
    for (const char* word : {"strads", "unchecked"}) {
      options.schedule = parse_schedule(word);
      const LassoResult result = solve_on(1, options, small_blocks()).result;
      EXPECT_EQ(result.end, LassoEnd::kConverged) << word;
      EXPECT_EQ(result.lambda, 1e6);
      EXPECT_EQ(result.last.nonzeros, 0);
      EXPECT_EQ(result.last.passes, 1);
      EXPECT_NEAR(result.last.gap, 0, 1e-12 * result.objective_at_zero);
      EXPECT_EQ(result.last.objective, result.objective_at_zero);
    }
  }
}

TEST(Lasso, WithoutAnInterceptNothingIsCentered) {
  const NaiveLasso naive(small_blocks(), false);
  LassoOptions options = usual_lasso();
  options.intercept = false;
  options.lambda = 0.5;
  for (const char* word : {"strads", "shotgun"}) {
    options.schedule = parse_schedule(word);
    options.updates = options.schedule == ScheduleKind::kShotgun ? 2 : 16;
    const LassoResult result = solve_on(1, options, small_blocks()).result;
    EXPECT_EQ(result.end, LassoEnd::kConverged) << word;
    EXPECT_EQ(result.intercept, 0);
    EXPECT_EQ(result.lambda, 0.5);
    EXPECT_LT(largest_difference(result.weights, naive.minimum(0.5)), 1e-4) << word;
  }
}

TEST(Lasso, AConstantFeatureHasNoWeight) {
  const auto group = make_single_group();
  const SystemClock clock;
  LassoData data = make_lasso_blocks(small_blocks(), 0, 1);
  std::fill_n(data.columns.begin() + 7 * data.count, data.count, 0.1);  // its mean is rounded
  const LassoResult result = solve_lasso(usual_lasso(), {.group = *group, .data = data, .clock = clock});
  EXPECT_EQ(result.end, LassoEnd::kConverged);
  EXPECT_EQ(result.weights[7], 0);
}

// Writes a checkpoint with `change`, and returns the message of the refusal. Without one it returns "".
std::string refusal_of(const std::function<void(LassoState&, std::map<std::string, std::string>&)>& change) {
  const TempDir folder;
  const auto group = make_single_group();
  const LassoData data = make_lasso_blocks(small_blocks(), 0, 1);
  LassoState state(data.features, 0, data.targets);
  state.active = {0, 3};
  auto values = state.values();
  change(state, values);
  CheckpointArrays arrays;
  state.put(arrays, 0);
  JobCheckpoint checkpoint(*group, {.folder = folder.file("ck"), .job = "lasso", .problem = {}});
  checkpoint.find();
  checkpoint.save(1, arrays, values);
  LassoState taken(data.features, 0, data.targets);
  try {
    taken.take(checkpoint, checkpoint.find().value(), data);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
    return error.what();
  }
  EXPECT_EQ(taken.active, state.active);
  return "";
}

TEST(Lasso, ADamagedCheckpointIsRefused) {
  EXPECT_EQ(refusal_of([](LassoState&, auto&) {}), "");
  EXPECT_THAT(refusal_of([](LassoState& s, auto&) { s.active = {120}; }), HasSubstr("names no feature"));
  EXPECT_THAT(refusal_of([](LassoState& s, auto&) { s.active = {-1}; }), HasSubstr("names no feature"));
  EXPECT_THAT(refusal_of([](LassoState& s, auto&) { s.weights[3] = NAN; }), HasSubstr("weights"));
  EXPECT_THAT(refusal_of([](LassoState& s, auto&) { s.residual[3] = INFINITY; }), HasSubstr("residual"));
  EXPECT_THAT(refusal_of([](LassoState& s, auto&) { s.priorities.set(3, -1); }), HasSubstr("negative"));
  EXPECT_THAT(refusal_of([](LassoState& s, auto&) { s.residual.pop_back(); }), HasSubstr("wrong length"));
  EXPECT_THAT(refusal_of([](LassoState&, auto& v) { v["updates"] = "12x"; }), HasSubstr("updates"));
  EXPECT_THAT(refusal_of([](LassoState&, auto& v) { v["updates"] = std::string("1\0x", 3); }),
              HasSubstr("updates"));
  EXPECT_THAT(refusal_of([](LassoState&, auto& v) { v["updates"] = "9223372036854775807"; }),
              HasSubstr("updates"));
  EXPECT_THAT(refusal_of([](LassoState&, auto& v) { v["passes"] = "-1"; }), HasSubstr("passes"));
  EXPECT_THAT(refusal_of([](LassoState&, auto& v) { v["mass"] = std::string("1\0x", 3); }),
              HasSubstr("mass"));
  EXPECT_THAT(refusal_of([](LassoState&, auto& v) { v["mass"] = "nan"; }), HasSubstr("mass"));
  EXPECT_THAT(refusal_of([](LassoState&, auto& v) { v["l1"] = ""; }), HasSubstr("l1"));
  EXPECT_THAT(refusal_of([](LassoState&, auto& v) { v.erase("settled"); }), HasSubstr("settled"));
}

TEST(Lasso, AStopOfOneRankEndsAllRanks) {
  const std::atomic<bool> stop = true;
  const LassoResult result = solve_on(3, usual_lasso(), small_blocks(), [&](int rank, LassoParts& parts) {
                               if (rank == 2) parts.stop = &stop;
                             }).result;
  EXPECT_EQ(result.end, LassoEnd::kStopped);
  EXPECT_EQ(result.last.rounds, 1);
}

TEST(Lasso, WhatCannotBeIsRefused) {
  for (const auto& wrong : std::vector<std::function<void(LassoOptions&)>>{
           [](LassoOptions& o) { o.lambda_share = 0; }, [](LassoOptions& o) { o.updates = 0; },
           [](LassoOptions& o) { o.updates = (1 << 14) + 1; }, [](LassoOptions& o) { o.target = NAN; },
           [](LassoOptions& o) { o.limit = 0; }, [](LassoOptions& o) { o.exploration = 1; },
           [](LassoOptions& o) { o.lambda = -1; }}) {
    LassoOptions options;
    wrong(options);
    EXPECT_THROW(check_lasso(options), ConfigError);
  }
  EXPECT_THROW(parse_schedule("priority"), ConfigError);
  const auto group = make_single_group();
  const SystemClock clock;
  LassoData flat = make_lasso_blocks(small_blocks(), 0, 1);
  flat.targets.assign(flat.targets.size(), 0.1);  // its mean is rounded
  EXPECT_THROW(solve_lasso({}, {.group = *group, .data = flat, .clock = clock}), DataError);
  LassoData wild = make_lasso_blocks(small_blocks(), 0, 1);
  wild.columns[95] = NAN;
  try {
    solve_lasso({}, {.group = *group, .data = wild, .clock = clock});
    FAIL() << "a number is not finite";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kData);
    EXPECT_THAT(error.what(), HasSubstr("feature 2 of sample 6"));
  }
}

TEST(FeatureScreen, LeavesOutOnlyFeaturesWhoseWeightsStayZero) {
  const NaiveLasso naive(small_blocks());
  const auto group = make_single_group();
  RankSums sums(*group);
  LassoData data = make_lasso_blocks(small_blocks(), 0, 1);
  const LassoProblem problem(data, sums, true);
  const double lambda = 0.3 * problem.lambda_max(), limit = lambda * 90;
  FeatureScreen screen(problem, sums, lambda);
  const std::vector<double> target = naive.minimum(lambda);
  size_t left_out = 0, all = 0;
  for (int step = 0; step <= 40; ++step) {
    std::vector<double> weights = target;  // on the way to the minimum
    for (double& weight : weights) weight *= 1 - std::pow(0.7, step);
    const std::vector<double> r = naive.residual(weights);
    const std::vector<int64_t> features = screen.candidates(r, weights);
    const std::set<int64_t> looked(features.begin(), features.end());
    ASSERT_EQ(looked.size(), features.size());
    std::vector<double> products;
    for (size_t j = 0; j < weights.size(); ++j) {
      products.push_back(naive.with_residual(j, r));
      if (looked.contains(static_cast<int64_t>(j))) continue;
      ++left_out;
      EXPECT_EQ(weights[j], 0) << step << " " << j;
      EXPECT_LT(std::abs(products[j]), limit) << step << " " << j;
    }
    if (features.size() == weights.size()) ++all, screen.renew(r, products);
  }
  EXPECT_GT(left_out, 20 * target.size()) << "more than half of all features";
  EXPECT_LT(all, 20u);
}

// The screen bounds the distance of residuals in all directions.
TEST(FeatureScreen, AFeatureComesBackWhenTheResidualMoves) {
  LassoData data;
  data.samples = data.count = 2;
  data.features = 2;
  data.columns = {1, 0, 0, 1};
  data.targets = {10, 0};
  const auto group = make_single_group();
  RankSums sums(*group);
  const LassoProblem problem(data, sums, false);
  FeatureScreen screen(problem, sums, 2.5);  // nλ = 5
  const std::vector<double> none(2, 0);
  EXPECT_EQ(screen.candidates({10, 0}, none), (std::vector<int64_t>{0}));
  EXPECT_EQ(screen.candidates({10, -4.9}, none), (std::vector<int64_t>{0}));
  EXPECT_EQ(screen.candidates({10, 0}, none), (std::vector<int64_t>{0, 1})) << "a new reference is due";
  screen.renew({10, 0}, {10, 0});
  EXPECT_EQ(screen.candidates({10, -5}, none), (std::vector<int64_t>{0, 1}));
  screen.renew({0, 0}, {0, 0});
  EXPECT_EQ(screen.candidates({3, 3.9}, none), (std::vector<int64_t>{}));
  EXPECT_EQ(screen.candidates({0, 0}, {0, -1}), (std::vector<int64_t>{1}));
}

// Without the limit of |s| to 1, the bound would be P(0), which is not below the minimum.
TEST(FeatureScreen, APassOfFewFeaturesBoundsTheMinimum) {
  const auto group = make_single_group();
  RankSums sums(*group);
  LassoData data = make_lasso_blocks(small_blocks(), 0, 1);
  const LassoProblem problem(data, sums, true);
  std::vector<double> half = data.targets;
  for (double& value : half) value /= 2;
  const LassoProblem::Pass pass = problem.pass({}, half, 0, 0.9 * problem.lambda_max());
  EXPECT_NEAR(pass.bound, 0.75 * problem.objective_at_zero(), 1e-12 * problem.objective_at_zero());
}

TEST(Lasso, PassesAndRefreshesLookAtFewFeatures) {
  LassoOptions options = usual_lasso();
  options.lambda_share = 0.3;
  const LassoResult result = solve_on(1, options, small_blocks()).result;
  EXPECT_GT(result.last.passes, 5);
  EXPECT_LT(result.looked, 120 * result.last.passes * 2 / 3);
  EXPECT_GT(result.looked, 0);
}

TEST(PriorityTree, AllAtOnceIsOneAfterAnother) {
  PriorityTree one(11, 0.1), all(11, 0.1);
  std::vector<double> progress;
  for (int64_t j = 0; j < 11; ++j) progress.push_back(uniform_of(key_of(3, static_cast<uint64_t>(j), 0)));
  all.set(4, 1e9);
  for (int64_t j = 10; j >= 0; --j) one.set(j, progress[static_cast<size_t>(j)]);
  all.assign(progress);
  EXPECT_EQ(one.total(), all.total());
  for (int64_t j = 0; j < 11; ++j) EXPECT_EQ(one.progress(j), all.progress(j));
}

TEST(PriorityTree, DrawsInProportionToPriorities) {
  constexpr double kExploration = 0.25;
  const std::vector<double> progress = {0, 3, 0, 1, 4, 0, 2};
  PriorityTree tree(7, kExploration);
  for (int64_t j = 0; j < 7; ++j) tree.set(j, 99);
  for (int64_t j = 0; j < 7; ++j) tree.set(j, progress[static_cast<size_t>(j)]);
  EXPECT_EQ(tree.total(), 10);
  constexpr int kDraws = 100'000;
  std::vector<int> seen(7, 0);
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    const auto feature = tree.draw(uniform_of(key_of(1, draw, 0)), uniform_of(key_of(1, draw, 1)));
    ASSERT_TRUE(feature);
    ++seen.at(static_cast<size_t>(*feature));
  }
  const double eta = kExploration / (1 - kExploration) * 10 / 7;
  for (size_t j = 0; j < 7; ++j) {
    const double expected = (progress[j] + eta) / (10 + 7 * eta);
    EXPECT_NEAR(seen[j] / double(kDraws), expected, 5 * std::sqrt(expected / kDraws)) << j;
  }
  PriorityTree none(3, 0.5);
  EXPECT_FALSE(none.draw(0.9, 0.1));
  EXPECT_EQ(none.draw(0.1, 0.99), 2);
}

TEST(Schedule, DrawsByPriorityDifferAndLeaveThePriorities) {
  PriorityTree tree(50, 0.1);
  for (int64_t j = 0; j < 20; ++j) tree.set(j, j == 3 ? 1000 : 1);
  const double before = tree.total();
  for (uint64_t round = 0; round < 20; ++round) {
    const std::vector<int64_t> drawn = draw_by_priority(16, 5, round, tree);
    EXPECT_EQ(std::set<int64_t>(drawn.begin(), drawn.end()).size(), drawn.size());
    EXPECT_EQ(drawn.size(), 16u);
    EXPECT_EQ(std::count(drawn.begin(), drawn.end(), 3), 1) << "the largest progress is always drawn";
    EXPECT_EQ(tree.total(), before);
    EXPECT_EQ(drawn, draw_by_priority(16, 5, round, tree));
  }
}

TEST(Schedule, TheLargestIndependentChangesAreTaken) {
  LassoData data;
  data.samples = data.count = 4;
  data.features = 4;
  data.columns = {1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0};  // the last has no variance
  const std::vector<double> squares = {1, 2, 1, 0};
  const auto group = make_single_group();
  RankSums sums(*group);
  Correlations correlations(data, squares, sums);
  const auto features = [&](double limit) {
    std::vector<int64_t> taken;
    for (const ProposedChange& change :
         independent_changes({{0, 1.0}, {1, -2.0}, {2, 0.5}, {3, 0.1}}, limit, correlations))
      taken.push_back(change.feature);
    return taken;
  };
  EXPECT_EQ(features(0.7), (std::vector<int64_t>{1, 2, 3}));  // √½ is no smaller
  EXPECT_EQ(features(0.71), (std::vector<int64_t>{1, 0, 2, 3}));
  EXPECT_EQ(correlations.computed(), 6);  // each pair once
  EXPECT_TRUE(independent_changes({{0, 0.0}}, 0.5, correlations).empty());
}

TEST(Schedule, PairsAreComputedAnewWhenTheCacheIsFull) {
  const LassoData data = make_lasso_blocks(small_blocks(), 0, 1);
  std::vector<double> squares;
  for (int64_t j = 0; j < data.features; ++j)
    squares.push_back(dot_product(data.column(j), data.column(j), data.count));
  const auto group = make_single_group();
  RankSums sums(*group);
  Correlations few(data, squares, sums, 5), many(data, squares, sums);
  for (int64_t step = 0; step < 40; ++step) {
    const int64_t first = 3 * (step % 20);
    const std::vector<int64_t> features = {first, first + 1, (first + 40) % 120, first + 9};
    few.prepare(features), many.prepare(features);
    for (const int64_t a : features)
      for (const int64_t b : features)
        if (a != b) {
          EXPECT_EQ(few.at(a, b), many.at(b, a));
        }
  }
  EXPECT_GT(few.computed(), many.computed());
}

TEST(Schedule, CorrelationsTakeAllPiecesOfLongColumns) {
  GeneratedBlocks blocks = small_blocks();
  blocks.samples = 1100, blocks.features = 12, blocks.nonzeros = 2;
  const NaiveLasso naive(blocks);
  const auto group = make_single_group();
  RankSums sums(*group);
  LassoData data = make_lasso_blocks(blocks, 0, 1);
  const LassoProblem problem(data, sums, true);
  Correlations correlations(data, problem.squares(), sums);
  const std::vector<int64_t> features = {1, 4, 8, 9, 11};
  correlations.prepare(features);
  for (const int64_t a : features)
    for (const int64_t b : features)
      if (a != b) {
        EXPECT_NEAR(correlations.at(a, b), naive.correlation(a, b), 1e-12) << a << " " << b;
      }
}

TEST(Kernels, ProductsHaveEqualBitsAloneAndTogether) {
  for (const int64_t count : {0, 1, 7, 8, 9, 33}) {
    std::vector<double> numbers;
    for (uint64_t i = 0; i < 7 * 33; ++i) numbers.push_back(uniform_of(key_of(i, 1, 2)) - 0.5);
    std::vector<const double*> columns;
    for (int k = 0; k < 6; ++k) columns.push_back(numbers.data() + 33 * (k + 1));
    std::vector<double> together(6, NAN);
    dot_products(numbers.data(), columns, count, together.data());
    for (size_t k = 0; k < 6; ++k) {
      double naive = 0;
      for (int64_t i = 0; i < count; ++i) naive += numbers[static_cast<size_t>(i)] * columns[k][i];
      EXPECT_NEAR(together[k], naive, 1e-14);
      EXPECT_EQ(together[k], dot_product(numbers.data(), columns[k], count));
      double distance = 0;
      for (int64_t i = 0; i < count; ++i)
        distance += std::pow(numbers[static_cast<size_t>(i)] - columns[k][i], 2);
      EXPECT_NEAR(square_of_difference(numbers.data(), columns[k], count), distance, 1e-14);
    }
  }
}

TEST(LassoFiles, BothFormatsGiveEqualRows) {
  const TempDir folder;
  write_bytes(folder.file("a.csv"), "y,a,b\n1,2,3\n4,5,6\n7,8,9.5\n");
  std::string header = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 3), }";
  header.resize(117, ' ');
  header += '\n';
  std::string npy = std::string("\x93NUMPY\x01\x00", 8) + char(118) + char(0) + header;
  for (const double x : {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.5})
    npy.append(reinterpret_cast<const char*>(&x), sizeof(x));
  write_bytes(folder.file("a.npy"), npy);
  for (const char* name : {"a.csv", "a.npy"}) {
    const LassoData part = read_lasso_data(folder.file(name), LabelColumn::kFirst, 1, 2);
    EXPECT_EQ(part.samples, 3);
    EXPECT_EQ(part.first, 1);
    EXPECT_EQ(part.columns, (std::vector<double>{5, 8, 6, 9.5})) << name;
    EXPECT_EQ(part.targets, (std::vector<double>{4, 7})) << name;
    const LassoData last = read_lasso_data(folder.file(name), LabelColumn::kLast, 0, 1);
    EXPECT_EQ(last.targets, (std::vector<double>{3, 6, 9.5})) << name;
  }
  write_bytes(folder.file("short.npy"), npy.substr(0, npy.size() - 8));
  EXPECT_THROW(read_lasso_data(folder.file("short.npy"), LabelColumn::kLast, 0, 1), DataError);
  // The header is compared with the file before memory is taken.
  for (const char* shape : {"(4, 3)", "(9223372036854775807, 3)", "(3, 9223372036854775807)", "(0, 3)"}) {
    std::string wrong = npy;
    const size_t at = wrong.find("(3, 3), }");
    wrong.replace(at, std::strlen(shape) + 3, std::string(shape) + ", }");
    write_bytes(folder.file("wrong.npy"), wrong);
    try {
      read_lasso_data(folder.file("wrong.npy"), LabelColumn::kLast, 0, 1);
      FAIL() << shape;
    } catch (const DataError& error) {  // other checks would refuse these files only after memory is taken
      EXPECT_THAT(error.what(), HasSubstr(*(shape + 1) == '0' ? "no samples" : "the header announces"))
          << shape;
    }
  }
  npy.replace(npy.find("<f8"), 3, "<i8");
  write_bytes(folder.file("int.npy"), npy);
  EXPECT_THROW(read_lasso_data(folder.file("int.npy"), LabelColumn::kLast, 0, 1), DataError);
}

}  // namespace
}  // namespace starling
