// Compares distributed logistic regression with Newton's method in plain loops, its bytes with a formula, and
// runs that end early with runs that do not.
#include "starling/lbfgs/solve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/lbfgs/gather_vector.h"
#include "starling/lbfgs/lbfgs_checkpoint.h"
#include "starling/lbfgs/logistic.h"
#include "starling/testing/error_of.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/take_lock.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kCount = 403, kFeatures = 7;  // 8 weights

SampleTable small_table() {
  SampleTable table = make_samples({.count = kCount, .features = kFeatures, .seed = 3});
  make_binary(table, std::nullopt);
  return table;
}

LbfgsOptions usual() {
  LbfgsOptions options;
  options.ridge = 0.01;
  options.minimize.tolerance = 1e-10;
  options.portions_per_rank = 6;
  return options;
}

// The problem in plain loops.
struct NaiveProblem {
  const SampleTable& table;
  double ridge;

  double value(const std::vector<double>& w) const {
    double sum = 0;
    for (int64_t i = 0; i < table.count(); ++i) {
      const double z = margin(w, i);
      sum += std::log(1 + std::exp(z)) - table.labels[static_cast<size_t>(i)] * z;
    }
    sum /= static_cast<double>(table.count());
    for (size_t j = 0; j + 1 < w.size(); ++j) sum += ridge / 2 * w[j] * w[j];
    return sum;
  }
  // The minimum by Newton's method with elimination.
  std::vector<double> minimum() const {
    const size_t n = static_cast<size_t>(table.features) + 1;
    std::vector<double> w(n, 0);
    for (int step = 0; step < 30; ++step) {
      std::vector<std::vector<double>> h(n, std::vector<double>(n, 0));
      std::vector<double> g(n, 0);
      for (int64_t i = 0; i < table.count(); ++i) {
        const double p = 1 / (1 + std::exp(-margin(w, i)));
        for (size_t j = 0; j < n; ++j) {
          g[j] += (p - table.labels[static_cast<size_t>(i)]) * feature(i, j) / table.count();
          for (size_t k = 0; k < n; ++k)
            h[j][k] += p * (1 - p) * feature(i, j) * feature(i, k) / table.count();
        }
      }
      for (size_t j = 0; j + 1 < n; ++j) {
        g[j] += ridge * w[j];
        h[j][j] += ridge;
      }
      for (size_t j = 0; j < n; ++j) {
        for (size_t k = 0; k < n; ++k) {
          if (k == j) continue;
          const double f = h[k][j] / h[j][j];
          for (size_t l = 0; l < n; ++l) h[k][l] -= f * h[j][l];
          g[k] -= f * g[j];
        }
      }
      for (size_t j = 0; j < n; ++j) w[j] -= g[j] / h[j][j];
    }
    return w;
  }

 private:
  double feature(int64_t i, size_t j) const {
    return j < static_cast<size_t>(table.features) ? table.row(i)[j] : 1;
  }
  double margin(const std::vector<double>& w, int64_t i) const {
    double z = 0;
    for (size_t j = 0; j < w.size(); ++j) z += w[j] * feature(i, j);
    return z;
  }
};

struct Solved {
  LbfgsResult first;            // of rank 0
  std::vector<double> weights;  // of all ranks
  uint64_t sent = 0;            // by the groups of all ranks
};

// Solves with ranks that are threads. `change` may change what a rank is given.
Solved solve(int ranks, const LbfgsOptions& options, const SampleTable& table,
             const std::function<void(int, LbfgsParts&)>& change = {}) {
  Solved solved;
  solved.weights.assign(static_cast<size_t>(lbfgs_elements(table)), NAN);
  std::mutex mutex;
  const SystemClock clock;
  run_ranks(ranks, [&](const ThreadRank& self) {
    const auto group = ranks == 1 ? make_single_group() : join_group(*self.store, self.rank, ranks);
    LbfgsParts parts{.group = *group, .samples = table, .clock = clock};
    if (change) change(self.rank, parts);
    const uint64_t before = group->traffic().sent();
    const LbfgsResult result = solve_logistic(options, parts);
    const std::lock_guard lock(mutex);
    solved.sent += group->traffic().sent() - before;
    std::copy(result.weights.begin(), result.weights.end(), solved.weights.begin() + result.slice.begin);
    if (self.rank == 0) solved.first = result;
  });
  return solved;
}

TEST(Solve, FindsTheMinimumOfNewtonsMethod) {
  const SampleTable table = small_table();
  const NaiveProblem naive{table, usual().ridge};
  const std::vector<double> exact = naive.minimum();
  for (const int ranks : {1, 2, 3, 5}) {
    const Solved solved = solve(ranks, usual(), table);
    EXPECT_EQ(solved.first.end, MinimizeEnd::kConverged);
    for (size_t j = 0; j < exact.size(); ++j) EXPECT_NEAR(solved.weights[j], exact[j], 1e-8) << ranks;
    EXPECT_NEAR(solved.first.state.objective, naive.value(exact), 1e-13);
    EXPECT_LE(solved.first.state.largest_gradient, 1e-10);
  }
}

TEST(Solve, MoreRanksThanWeightsWork) {
  SampleTable table = make_samples({.count = 50, .features = 1, .seed = 1});
  make_binary(table, std::nullopt);
  const std::vector<double> exact = NaiveProblem{table, usual().ridge}.minimum();
  const Solved solved = solve(4, usual(), table);
  EXPECT_NEAR(solved.weights[0], exact[0], 1e-8);
  EXPECT_NEAR(solved.weights[1], exact[1], 1e-8);
}

// Which rank computes a portion, and which copy is first, changes no bit.
TEST(Solve, EveryScheduleGivesEqualBits) {
  const SampleTable table = small_table();
  LbfgsOptions options = usual();
  options.minimize.max_iterations = 6;
  const Solved plain = solve(3, options, table);
  options.emulation.compute_s = 0.006;
  options.emulation.slow_ranks = {{1, 30}};
  const Solved slow = solve(3, options, table);
  options.backups = false;
  const Solved alone = solve(3, options, table);
  EXPECT_EQ(alone.first.portions.copies, 0);
  for (const Solved* other : {&slow, &alone}) {
    EXPECT_EQ(other->weights, plain.weights);
    EXPECT_EQ(other->first.state.objective, plain.first.state.objective);
    EXPECT_EQ(other->first.state.evaluations, plain.first.state.evaluations);
  }
  options.equal_portions = true;
  const Solved equal = solve(3, options, table);
  for (const int64_t delivered : equal.first.portions.delivered)
    EXPECT_EQ(delivered, equal.first.evaluations);
}

// Only scalars pass the coordinator. The number of bytes is a function of iterations and evaluations.
TEST(Solve, BytesAreThoseOfTheFormula) {
  const SampleTable table = small_table();
  for (const int p : {2, 4}) {  // both divide the 8 weights
    LbfgsOptions options = usual();
    options.minimize.max_iterations = 5;  // fewer than the pairs, so that k = 0 … 4 pairs are known
    const Solved solved = solve(p, options, table);
    const double others = p - 1, n = kFeatures + 1;
    const auto k = solved.first.state.iterations, e = solved.first.evaluations;
    ASSERT_EQ(k, 5);
    const double head = 16, term = 16, pair = 8, scalar = 8;
    // An instruction is a head and its terms or pairs. A reply has one scalar per product.
    const auto combine = [&](double terms) { return head + terms * term; };
    const auto dots = [&](double products) { return head + products * (pair + scalar); };
    double bytes = head + scalar;                                  // the hashes of the samples
    bytes += combine(0) + 2 * combine(1) + dots(1);                // x = 0, its copy, the copy of g, g·g
    bytes += static_cast<double>(e) * (head + 3 * scalar);         // evaluations
    bytes += static_cast<double>(e - 1) * (combine(2) + dots(1));  // x + t d and the slope there
    for (int64_t i = 0; i < k; ++i) {
      const auto pairs = static_cast<double>(i);
      bytes += combine(1 + 2 * pairs) + dots(1);  // d and its slope
      bytes += 2 * combine(2) + 2 * combine(1);   // s, y, and the copies of x and g
      bytes += dots(2 + 4 * (pairs + 1));         // the changed products
    }
    bytes += head + 3 * scalar;  // the end
    const ByteCounts& counted = solved.first.bytes;
    EXPECT_EQ(counted.scalars, others * bytes);
    // Weights go to all ranks. Each portion of a gradient goes to the other shards, with a head for each.
    const double portions = p * options.portions_per_rank;
    EXPECT_EQ(counted.vectors,
              static_cast<double>(e) * (others * n * 8 + portions * others * (8 + n / p * 8)));
    // Each request of another rank than rank 0 has 24 bytes and an answer of 16, but the last has no answer.
    EXPECT_EQ(counted.portions, static_cast<double>(solved.first.requests) * (24 + 16) - others * 16);
    EXPECT_EQ(static_cast<double>(solved.sent), counted.scalars + counted.vectors + counted.portions);
  }
}

// 3 ranks do not divide the 8 weights. Weights travel in slices of equal width, and gradients without
// padding.
TEST(Solve, BytesOfSlicesOfUnequalWidths) {
  const SampleTable table = small_table();
  LbfgsOptions options = usual();
  options.minimize.max_iterations = 5;
  options.equal_portions = true;  // so that the test knows which rank sends which gradient
  const Solved solved = solve(3, options, table);
  const double p = 3, n = kFeatures + 1, width = 3;
  const double weights = 8 * p * (p - 1) * width, gradients = 8 * p * (p - 1) + 8 * (p - 1) * n;
  EXPECT_EQ(solved.first.bytes.vectors,
            static_cast<double>(solved.first.evaluations) * (weights + gradients));
  const ByteCounts& counted = solved.first.bytes;
  EXPECT_EQ(static_cast<double>(solved.sent), counted.scalars + counted.vectors + counted.portions);
}

// All ranks learn how the loop ended, because they decide together what follows.
TEST(Solve, AStopOfAnyRankEndsAllRanks) {
  const SampleTable table = small_table();
  const SystemClock clock;
  const std::atomic<bool> stop{true};
  for (const int asked : {0, 2}) {
    run_ranks(3, [&](const ThreadRank& self) {
      const auto group = join_group(*self.store, self.rank, 3);
      LbfgsParts parts{.group = *group, .samples = table, .clock = clock};
      if (self.rank == asked) parts.stop = &stop;
      const LbfgsResult result = solve_logistic(usual(), parts);
      EXPECT_EQ(result.end, MinimizeEnd::kStopped) << self.rank;
      EXPECT_FALSE(result.failed);
      if (self.rank == 0) {
        EXPECT_EQ(result.state.iterations, 1);
      }
    });
  }
}

TEST(Solve, AFaultOfRank0IsNoResultOfTheOtherRanks) {
  const SampleTable table = small_table();
  const TempDir folder;
  LbfgsOptions options = usual();
  options.checkpoint = folder.file("ck");
  options.minimize.max_iterations = 2;
  solve(2, options, table);
  options.ridge *= 2;
  const SystemClock clock;
  run_ranks(2, [&](const ThreadRank& self) {
    const auto group = join_group(*self.store, self.rank, 2);
    const LbfgsParts parts{.group = *group, .samples = table, .clock = clock};
    if (self.rank == 0) {
      EXPECT_THROW(solve_logistic(options, parts), ConfigError);
    } else {
      EXPECT_TRUE(solve_logistic(options, parts).failed);
    }
  });
}

TEST(Solve, FeaturesThatAreTooLargeAreRefused) {
  SampleTable table = small_table();
  for (int64_t i = 0; i < table.count(); ++i) table.values[static_cast<size_t>(i * kFeatures)] *= 1.7e18;
  for (const int ranks : {1, 2}) {
    const std::string message = error_of([&] { solve(ranks, usual(), table); });
    EXPECT_THAT(message, AllOf(HasSubstr("no step decreases the objective"), HasSubstr("scale the features"),
                               HasSubstr("e+18")));
  }
}

// The weights are good although the last checkpoint cannot be written.
TEST(Solve, AFaultOfTheLastCheckpointLeavesTheWeights) {
  const SampleTable table = small_table();
  LbfgsOptions options = usual();
  options.minimize.max_iterations = 4;
  const Solved whole = solve(2, options, table);
  const TempDir folder;
  options.checkpoint = folder.file("ck");
  options.checkpoint_every = 0;
  const SystemClock clock;
  std::vector<double> weights;
  for (const int blocked : {0, 1}) {
    // A folder has the name of a part, so that this part cannot be renamed onto it.
    std::filesystem::remove_all(options.checkpoint);
    run_ranks(2, [&](const ThreadRank& self) {
      const auto group = join_group(*self.store, self.rank, 2);
      LbfgsParts parts{.group = *group, .samples = table, .clock = clock};
      if (self.rank == 0) {
        parts.on_iteration = [&](const MinimizeStep&) {
          std::filesystem::create_directories(CheckpointPlace{options.checkpoint, 4, 2, blocked}.file());
        };
      }
      const LbfgsResult result = solve_logistic(options, parts);
      EXPECT_EQ(result.unsaved != nullptr, self.rank == 0 || self.rank == blocked);
      EXPECT_EQ(result.end, MinimizeEnd::kIterations);
      const std::vector<double> gathered = gather_vector(*group, lbfgs_elements(table), result.weights);
      if (self.rank == 0) weights = gathered;
    });
    EXPECT_EQ(weights, whole.weights);
    EXPECT_FALSE(std::filesystem::exists(options.checkpoint + "/lbfgs.txt"));
  }
}

TEST(Solve, ARunThatHasLostItsLockWritesNothing) {
  const SampleTable table = small_table();
  const TempDir folder;
  LbfgsOptions options = usual();
  options.checkpoint = folder.file("ck");
  options.checkpoint_every = 1;
  const SystemClock clock;
  run_ranks(2, [&](const ThreadRank& self) {
    const auto group = join_group(*self.store, self.rank, 2);
    LbfgsParts parts{.group = *group, .samples = table, .clock = clock};
    if (self.rank != 0) {
      EXPECT_TRUE(solve_logistic(options, parts).failed);
      return;
    }
    parts.on_iteration = [&](const MinimizeStep&) { take_lock_elsewhere(options.checkpoint); };
    EXPECT_THAT(error_of([&] { solve_logistic(options, parts); }),
                HasSubstr("process 1 on elsewhere has taken over the folder"));
  });
  const std::filesystem::directory_iterator files(options.checkpoint);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);  // the folder of the lock
}

TEST(Solve, ARestartOfAnEndedRunDoesNothing) {
  const SampleTable table = small_table();
  const TempDir folder;
  LbfgsOptions options = usual();
  options.checkpoint = folder.file("ck");
  options.minimize.tolerance = 0;  // rounding ends the loop
  const Solved first = solve(2, options, table);
  EXPECT_EQ(first.first.end, MinimizeEnd::kNoDecrease);
  for (int restart = 0; restart < 2; ++restart) {
    const Solved again = solve(2, options, table);
    EXPECT_EQ(again.first.end, MinimizeEnd::kNoDecrease);
    EXPECT_EQ(again.first.evaluations, 0);
    EXPECT_EQ(again.first.state.iterations, first.first.state.iterations);
    EXPECT_EQ(again.weights, first.weights);
  }
}

TEST(Solve, ResumesWithEqualBits) {
  const SampleTable table = small_table();
  const Solved whole = solve(3, usual(), table);
  ASSERT_GT(whole.first.state.iterations, 9);
  const TempDir folder;
  LbfgsOptions options = usual();
  options.checkpoint = folder.file("ck");
  options.checkpoint_every = 2;
  std::atomic<bool> stop{false};
  const auto stop_at_5 = [&](int, LbfgsParts& parts) {
    parts.stop = &stop;
    parts.on_iteration = [&](const MinimizeStep& step) { stop = step.state.iterations == 5; };
  };
  const Solved begun = solve(3, options, table, stop_at_5);
  EXPECT_EQ(begun.first.end, MinimizeEnd::kStopped);
  EXPECT_EQ(begun.first.state.iterations, 5);
  const TempDir copy;
  std::filesystem::copy(options.checkpoint, copy.path(), std::filesystem::copy_options::recursive);
  const Solved rest = solve(3, options, table);
  EXPECT_EQ(rest.first.resumed_from, 5);
  EXPECT_EQ(rest.weights, whole.weights);
  EXPECT_EQ(rest.first.state.objective, whole.first.state.objective);
  EXPECT_EQ(rest.first.state.iterations, whole.first.state.iterations);
  EXPECT_EQ(rest.first.state.evaluations, whole.first.state.evaluations);
  EXPECT_EQ(rest.first.evaluations, whole.first.evaluations - begun.first.evaluations);
  // The parts of the last two checkpoints stay, lbfgs.txt and the folder of the lock.
  const std::filesystem::directory_iterator files(options.checkpoint);
  EXPECT_EQ(std::distance(begin(files), end(files)), 2 * 3 + 2);
  // A run that has converged does nothing more.
  EXPECT_EQ(solve(3, options, table).first.evaluations, 0);
  // Another number of ranks reads the parts, too.
  options.checkpoint = copy.path();
  const Solved two = solve(2, options, table);
  EXPECT_EQ(two.first.resumed_from, 5);
  for (size_t j = 0; j < two.weights.size(); ++j) EXPECT_NEAR(two.weights[j], whole.weights[j], 1e-9);
}

TEST(Solve, WhatIsNoCheckpointOfThisRunIsRefused) {
  const SampleTable table = small_table();
  const TempDir folder;
  LbfgsOptions options = usual();
  options.checkpoint = folder.file("ck");
  options.minimize.max_iterations = 3;
  solve(2, options, table);
  const auto message = [&](const LbfgsOptions& how, const SampleTable& what) {
    return error_of([&] { solve(2, how, what); });
  };
  LbfgsOptions other = options;
  other.ridge = 0.02;
  EXPECT_THAT(message(other, table),
              AllOf(HasSubstr("--checkpoint"), HasSubstr("a ridge of 0.01, not 0.02")));
  other = options;
  other.minimize.memory = 4;
  EXPECT_THAT(message(other, table), HasSubstr("10 pairs, not 4"));
  SampleTable changed = table;
  changed.values[11] += 1e-9;
  EXPECT_THAT(message(options, changed), HasSubstr("other samples"));
  const std::string part = CheckpointPlace{options.checkpoint, 3, 2, 0}.file();
  std::string bytes = read_bytes(part);
  bytes[bytes.size() / 2] ^= 1;
  write_bytes(part, bytes);
  EXPECT_THAT(message(options, table), AllOf(HasSubstr(part), HasSubstr("is damaged")));
  std::filesystem::remove(part);
  EXPECT_THAT(message(options, table), HasSubstr("not whole"));
  const std::string manifest = options.checkpoint + "/lbfgs.txt";
  std::string text = read_bytes(manifest);
  for (const char* word : {"memory", "objective", "slots", "end"}) {
    std::string broken = text;
    broken.replace(broken.find(word), 3, "xxx");
    write_bytes(manifest, broken);
    EXPECT_THAT(message(options, table), AllOf(HasSubstr(manifest), HasSubstr("is damaged"))) << word;
  }
}

// A run that began anew would remove the parts of a checkpoint whose lbfgs.txt is not readable now.
TEST(Solve, AFolderThatCannotBeUsedIsRefusedAtTheStart) {
  const SampleTable table = small_table();
  const TempDir folder;
  LbfgsOptions options = usual();
  options.checkpoint = folder.file("ck");
  options.minimize.max_iterations = 3;
  solve(2, options, table);
  const std::string manifest = options.checkpoint + "/lbfgs.txt";
  const std::string part = CheckpointPlace{options.checkpoint, 3, 2, 0}.file(), bytes = read_bytes(part);
  const auto message = [&] {
    const auto never = [](int, LbfgsParts& parts) {
      parts.on_iteration = [](const MinimizeStep&) { ADD_FAILURE() << "the run began"; };
    };
    return error_of([&] { solve(2, options, table, never); });
  };
  std::filesystem::remove(manifest);
  EXPECT_THAT(message(), AllOf(HasSubstr("has lbfgs-3-"), HasSubstr("but no lbfgs.txt")));
  std::filesystem::create_symlink("lbfgs.txt", manifest);  // leads to itself
  EXPECT_THAT(message(), AllOf(HasSubstr(manifest), HasSubstr("cannot be opened")));
  EXPECT_EQ(read_bytes(part), bytes);
  options.checkpoint = part;
  EXPECT_THAT(message(), AllOf(HasSubstr(part), HasSubstr("the folder cannot be made")));
}

TEST(Solve, RanksWithOtherSamplesAreRefused) {
  const SampleTable table = small_table();
  SampleTable other = table;
  other.labels[5] = 1 - other.labels[5];
  const std::string message = error_of<DataError>([&] {
    const SystemClock clock;
    run_ranks(3, [&](const ThreadRank& self) {
      const auto group = join_group(*self.store, self.rank, 3);
      solve_logistic(usual(), {*group, self.rank == 2 ? other : table, clock});
    });
  });
  EXPECT_THAT(message, HasSubstr("rank 2 has other samples than rank 0"));
}

TEST(Solve, OptionsOutOfRangeAreRefused) {
  const auto message = [](const std::function<void(LbfgsOptions&)>& change) {
    LbfgsOptions options;
    change(options);
    return error_of<ConfigError>([&] { check_lbfgs(options); });
  };
  EXPECT_EQ(message([](LbfgsOptions&) {}), "");
  EXPECT_THAT(message([](LbfgsOptions& o) { o.ridge = -1; }), HasSubstr("--ridge: -1"));
  EXPECT_THAT(message([](LbfgsOptions& o) { o.ridge = NAN; }), HasSubstr("--ridge"));
  EXPECT_THAT(message([](LbfgsOptions& o) { o.minimize.tolerance = -1; }), HasSubstr("--tolerance"));
  EXPECT_THAT(message([](LbfgsOptions& o) { o.minimize.memory = 0; }), HasSubstr("--memory"));
  EXPECT_THAT(message([](LbfgsOptions& o) { o.portions_per_rank = 0; }), HasSubstr("--portions"));
  EXPECT_THAT(message([](LbfgsOptions& o) { o.minimize.max_iterations = -1; }), HasSubstr("--iterations"));
}

TEST(Solve, AnEvaluationWithoutProgressEnds) {
  const SampleTable table = small_table();
  LbfgsOptions options = usual();
  options.emulation.compute_s = 600;
  const auto soon = [](int, LbfgsParts& parts) { parts.timeout = std::chrono::milliseconds(200); };
  const std::string message = error_of<CommError>([&] { solve(2, options, table, soon); });
  EXPECT_THAT(message, HasSubstr("received no portion of evaluation 1 for 0.2 s"));
}

TEST(Solve, ALostRankEndsTheRun) {
  const SampleTable table = small_table();
  LbfgsOptions options = usual();
  options.emulation.compute_s = 0.05;
  ForkedRanks ranks(3, [&](int rank, Store& store) {
    const auto group = join_group(store, rank, 3);
    const SystemClock clock;
    LbfgsParts parts{.group = *group, .samples = table, .clock = clock};
    if (rank == 0) {
      parts.on_iteration = [&](const MinimizeStep& step) {
        if (step.state.iterations == 2) store.put("begun", "2");
      };
    }
    solve_logistic(options, parts);
  });
  ranks.store().get("begun", std::chrono::seconds(60));
  ranks.signal(2, SIGKILL);
  EXPECT_EQ(ranks.wait(2), -SIGKILL);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(ranks.wait(rank), 1);
    EXPECT_THAT(ranks.store().try_get("error/" + std::to_string(rank)).value_or(""), HasSubstr("rank 2"));
  }
}

}  // namespace
}  // namespace starling
