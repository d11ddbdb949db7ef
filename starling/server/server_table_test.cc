#include "starling/server/server_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Values = std::vector<double>;

ServerOptions options_of(int workers, std::optional<int64_t> staleness) {
  ServerOptions options;
  options.workers = workers;
  options.staleness = staleness;
  options.optimizer.momentum = 0;
  options.record_events = true;
  return options;
}

// Returns a table with two partitions of 2 and 1 elements, which all workers own, loaded with `start`.
ServerTable<double> make_table(const ServerOptions& options, Values start = {0, 0, 0}) {
  ServerTable<double> table({2, 1}, options);
  for (int w = 0; w < options.workers; ++w) table.join(w, {0, 1});
  table.load(0, 0, start);
  return table;
}

PushOutcome push(ServerTable<double>& table, int worker, int64_t clock, Values gradient, double lr = 1.0) {
  return table.push(worker, clock, {.lr = lr, .loss = gradient[0]}, gradient);
}

std::optional<Values> read(ServerTable<double>& table, int worker, int64_t clock) {
  Values out;
  if (!table.try_read(worker, clock, 1, out)) return std::nullopt;
  return out;
}

std::string fault(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST(ServerTable, SynchronousAveragesTheGradientsOfAClock) {
  for (const bool fixed : {true, false}) {
    ServerOptions options = options_of(2, 0);
    options.fixed_order = fixed;
    ServerTable<double> table = make_table(options, {1, 2, 3});
    EXPECT_EQ(*read(table, 0, 0), Values({1, 2, 3}));
    EXPECT_EQ(push(table, 1, 0, {2, 4, 6}, 0.5), PushOutcome::kHeld);
    EXPECT_FALSE(read(table, 1, 1));  // waits for worker 0
    EXPECT_EQ(push(table, 0, 0, {4, 8, -2}, 0.5), PushOutcome::kHeld);
    EXPECT_EQ(*read(table, 1, 1), Values({1 - 0.5 * 3, 2 - 0.5 * 6, 3 - 0.5 * 2}));
    Values out;
    const auto grant = table.try_read(0, 1, 1, out);
    EXPECT_EQ(grant->clock, 1);
    EXPECT_DOUBLE_EQ(grant->loss, 3);
    EXPECT_EQ(table.stats().updates, 1u);
    EXPECT_EQ(table.stats().requests(), 5u);
    EXPECT_EQ(table.stats().max_staleness, 0);
  }
}

TEST(ServerTable, FixedOrderAddsInTheOrderOfTheWorkersHoweverTheyCome) {
  // In fp32 (1 + 2^30) - 2^30 is 0 and 1 + (2^30 - 2^30) is 1: the order of the additions shows.
  const float big = 1 << 30;
  const std::vector<float> gradients = {1, big, -big};
  const auto update = [&](const std::vector<int>& arrival) {
    ServerTable<float> table({1}, options_of(3, 0));
    for (int w = 0; w < 3; ++w) table.join(w, {0});
    table.load(0, 0, std::vector<float>{0});
    for (const int w : arrival) {
      std::vector<float> g = {gradients[w]};
      table.push(w, 0, {.lr = 3}, g);
    }
    return table.parameters()[0];
  };
  EXPECT_EQ(update({0, 1, 2}), 0.0f);
  EXPECT_EQ(update({1, 2, 0}), 0.0f);
  EXPECT_EQ(update({2, 1, 0}), 0.0f);
}

TEST(ServerTable, BackupWorkersMakeUpForTheLateAndTheLateAreDropped) {
  ServerOptions options = options_of(3, 0);
  options.backup = 1;
  ServerTable<double> table = make_table(options);
  push(table, 0, 0, {2, 0, 0});
  EXPECT_FALSE(read(table, 0, 1));
  push(table, 2, 0, {4, 0, 0});
  EXPECT_EQ(*read(table, 0, 1), Values({-3, 0, 0}));  // two of three gradients are enough
  push(table, 0, 1, {2, 0, 0});
  push(table, 2, 1, {2, 0, 0});
  EXPECT_EQ(push(table, 1, 0, {100, 0, 0}), PushOutcome::kDropped);
  Values out;
  const auto grant = table.try_read(1, 1, 1, out);
  EXPECT_EQ(grant->clock, 2);  // the late worker continues at the clock of the remaining workers
  EXPECT_EQ(out, Values({-5, 0, 0}));
  EXPECT_EQ(push(table, 1, 2, {6, 0, 0}), PushOutcome::kHeld);
  EXPECT_EQ(table.stats().late_dropped, 1u);
  // The other workers have ended, so no clock waits for them.
  table.retire(0, false);
  EXPECT_FALSE(read(table, 1, 3));
  table.retire(2, false);
  EXPECT_EQ(*read(table, 1, 3), Values({-11, 0, 0}));
  EXPECT_EQ(table.stats().retired, 0u);
}

TEST(ServerTable, AGradientCountsAsManyTimesAsItHasSamples) {
  for (const bool fixed : {true, false}) {
    ServerOptions options = options_of(2, 0);
    options.fixed_order = fixed;
    ServerTable<double> table = make_table(options);
    Values small = {8, 0, 4}, large = {4, 4, 0};
    table.push(0, 0, {.lr = 1, .loss = 8, .weight = 1}, small);
    table.push(1, 0, {.lr = 1, .loss = 4, .weight = 3}, large);
    Values out;
    const auto grant = table.try_read(0, 1, 1, out);
    EXPECT_EQ(out, Values({-5, -3, -1}));
    EXPECT_DOUBLE_EQ(grant->loss, 5);
  }
  ServerTable<double> table = make_table(options_of(1, 0));
  Values g = {1, 1, 1};
  EXPECT_THAT(fault([&] { table.push(0, 0, {.weight = -1}, g); }), HasSubstr("weight -1"));
  EXPECT_THAT(fault([&] { table.push(0, 0, {.weight = std::nan("")}, g); }), HasSubstr("weight nan"));
}

TEST(ServerTable, AGradientWithoutWeightDoesNotCount) {
  for (const bool fixed : {true, false}) {
    ServerOptions options = options_of(2, 0);
    options.fixed_order = fixed;
    ServerTable<double> table = make_table(options);
    Values none = {8, 0, 4}, all = {4, 4, 0};
    table.push(0, 0, {.lr = 1, .loss = 8, .weight = 0}, none);
    table.push(1, 0, {.lr = 1, .loss = 4, .weight = 2.5}, all);
    Values out;
    const auto grant = table.try_read(0, 1, 1, out);
    EXPECT_EQ(out, Values({-4, -4, 0}));
    EXPECT_DOUBLE_EQ(grant->loss, 4);
  }
}

TEST(ServerTable, ALossIsToldWithTheSameClockToAllAndTheOthersGoOn) {
  ServerTable<double> table = make_table(options_of(3, 0));
  push(table, 2, 0, {6, 0, 0});
  table.retire(2, true);  // its push counts
  push(table, 0, 0, {3, 0, 0});
  push(table, 1, 0, {0, 0, 0});
  Values out;
  EXPECT_EQ(table.try_read(0, 1, 1, out)->lost, 1);
  EXPECT_EQ(out, Values({-3, 0, 0}));
  table.retire(0, true);  // at clock 1: worker 1 is told at clock 2, whenever it asks
  EXPECT_EQ(table.try_read(1, 1, 1, out)->lost, 1);
  push(table, 1, 1, {1, 0, 0});
  EXPECT_EQ(table.try_read(1, 2, 1, out)->lost, 2);
  EXPECT_EQ(out, Values({-4, 0, 0}));
  EXPECT_THAT(table.stats().lost, ElementsAre(2, 0));
}

TEST(ServerTable, AClockThatALossBreaksOffIsMadeAgainByThoseWhoAreLeft) {
  for (const bool fixed : {true, false}) {
    ServerOptions options = options_of(4, 0);
    options.fixed_order = fixed;
    options.redo_after_loss = true;
    ServerTable<double> table = make_table(options);
    Values out;
    for (int w = 0; w < 4; ++w) EXPECT_EQ(table.try_read(w, 0, 1, out)->lost, 0);
    push(table, 0, 0, {100, 0, 0});
    push(table, 3, 0, {100, 0, 0});
    table.retire(3, true);  // it has pushed: the clock may end as it began
    EXPECT_FALSE(read(table, 0, 1));
    table.retire(2, true);
    const auto told = table.try_read(0, 1, 1, out);  // at once: worker 1 still computes
    EXPECT_EQ(told->clock, 0);
    EXPECT_EQ(told->lost, 2);
    EXPECT_EQ(push(table, 1, 0, {100, 0, 0}),
              PushOutcome::kDropped);  // a gradient of the batch as it was divided before
    EXPECT_EQ(table.try_read(1, 1, 1, out)->clock, 0);
    EXPECT_EQ(out, Values({0, 0, 0}));
    EXPECT_EQ(push(table, 0, 0, {2, 0, 0}), PushOutcome::kHeld);
    EXPECT_FALSE(read(table, 0, 1));
    EXPECT_EQ(push(table, 1, 0, {4, 0, 0}), PushOutcome::kHeld);
    EXPECT_EQ(table.try_read(0, 1, 1, out)->clock, 1);
    EXPECT_EQ(out, Values({-3, 0, 0}));
    // The last worker finishes alone. The push of a lost worker counts if no other push is missing.
    EXPECT_EQ(table.try_read(1, 1, 1, out)->lost, 2);
    push(table, 0, 1, {1, 0, 0});
    table.retire(0, true);
    push(table, 1, 1, {3, 0, 0});
    EXPECT_EQ(table.try_read(1, 2, 1, out)->lost, 3);
    EXPECT_EQ(out, Values({-5, 0, 0}));
    EXPECT_EQ(table.stats().late_dropped, 0u);
  }
}

TEST(ServerTable, OfAsynchronousWorkersThoseThatAreLeftShareTheStep) {
  ServerTable<double> table = make_table(options_of(4, std::nullopt));
  push(table, 0, 0, {4, 0, 0});
  table.retire(1, true);
  table.retire(2, false);  // has ended regularly
  push(table, 0, 1, {3, 0, 0});
  Values out;
  EXPECT_EQ(table.try_read(3, 0, 1, out)->lost, 1);
  EXPECT_EQ(out, Values({-2, 0, 0}));
}

TEST(ServerTable, AReadSeesWhatTheBoundPromisesAndWaitsForNoMore) {
  ServerTable<double> table = make_table(options_of(2, 2));
  for (int64_t c = 0; c < 3; ++c) {
    ASSERT_TRUE(read(table, 0, c)) << c;
    push(table, 0, c, {1, 0, 0});
  }
  EXPECT_FALSE(read(table, 0, 3));  // needs worker 1's update of clock 0
  push(table, 1, 0, {10, 0, 0});
  // A worker sees its own updates at once, each with lr / 2.
  EXPECT_EQ(*read(table, 0, 3), Values({-6.5, 0, 0}));
  EXPECT_EQ(table.stats().max_staleness, 2);
  EXPECT_EQ(table.stats().staleness.at(0), 1u);
  EXPECT_EQ(table.stats().staleness.at(2), 2u);
  push(table, 0, 3, {0, 0, 0});
  EXPECT_FALSE(read(table, 0, 4));
  table.retire(1, true);
  EXPECT_TRUE(read(table, 0, 4));
  EXPECT_EQ(table.stats().retired, 1u);
}

TEST(ServerTable, TheBoundHoldsOnEveryReadOfRandomInterleavings) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 60; ++trial) {
    const int workers = 2 + static_cast<int>(random() % 4);
    const int64_t bound = static_cast<int64_t>(random() % 4) + 1;
    ServerOptions options = options_of(workers, bound);
    options.lambda.assign(static_cast<size_t>(workers), 1.0 / workers);  // also after a loss
    ServerTable<double> table = make_table(options);
    std::vector<int64_t> clock(workers, 0);
    std::vector<bool> has_read(workers, false), gone(workers, false);
    std::vector<double> own(workers, 0);  // what each worker has pushed, in units of a step
    for (int event = 0; event < 400; ++event) {
      const int w = static_cast<int>(random() % workers);
      if (gone[w]) continue;
      if (event > 300 && random() % 40 == 0) {
        table.retire(w, true);
        gone[w] = true;
        continue;
      }
      if (has_read[w]) {
        Values g(3, 0.0);
        g[1] = std::pow(2.0, w);
        table.push(w, clock[w]++, {.lr = static_cast<double>(workers)}, g);
        own[w] += g[1];
        has_read[w] = false;
        continue;
      }
      int64_t slowest = clock[w];
      for (int k = 0; k < workers; ++k) {
        if (!gone[k]) slowest = std::min(slowest, clock[k]);
      }
      Values out;
      const auto grant = table.try_read(w, clock[w], 1, out);
      ASSERT_EQ(grant.has_value(), clock[w] - slowest <= bound);
      if (!grant) continue;
      EXPECT_LE(grant->staleness, bound);
      double all = 0;
      for (const double x : own) all += x;
      EXPECT_DOUBLE_EQ(out[1], -all);  // its own updates and all that have arrived
      has_read[w] = true;
    }
    EXPECT_LE(table.stats().max_staleness, bound);
  }
}

TEST(ServerTable, AsynchronousWeighsByWorkerAndStaleness) {
  ServerOptions options = options_of(2, std::nullopt);
  options.lambda = {1.0, 0.25};
  options.weight_by_staleness = true;
  ServerTable<double> table = make_table(options);
  read(table, 0, 0);
  read(table, 1, 0);
  push(table, 0, 0, {8, 0, 0});  // τ = 0
  push(table, 1, 0, {8, 0, 0});  // λ = 1/4, τ = 1
  push(table, 0, 1, {8, 0, 0});  // τ = 1: a worker's own update does not count
  EXPECT_DOUBLE_EQ(*read(table, 0, 2)->begin(), -(8.0 + 8.0 * 0.25 / 2 + 8.0 / 2));
  EXPECT_EQ(table.events()[3].value, 1);
  EXPECT_EQ(table.events()[4].value, 1);
}

// The stages of one replica push at the same time, but to different partitions. No update is stale.
TEST(ServerTable, StalenessCountsUpdatesOfTheSamePartitionOnly) {
  ServerOptions options = options_of(3, std::nullopt);
  options.lambda = {1.0, 1.0, 1.0};
  options.weight_by_staleness = true;
  ServerTable<double> table({2, 1}, options);
  table.join(0, {0});
  table.join(1, {1});
  table.join(2, {0, 1});
  table.load(0, 0, Values{0, 0});
  table.load(1, 0, Values{0});
  for (const int worker : {0, 1, 2}) read(table, worker, 0);
  push(table, 0, 0, {8, 8});     // partition 0, τ = 0
  push(table, 1, 0, {8});        // partition 1, τ = 0
  push(table, 1, 1, {8});        // partition 1, τ = 0
  push(table, 2, 0, {6, 6, 6});  // τ = 1 in partition 0, τ = 2 in partition 1
  EXPECT_EQ(*read(table, 2, 1), Values({-(8.0 + 3), -(8.0 + 3), -(16.0 + 2)}));
  std::vector<int64_t> taus;
  for (const ServerTableEvent& event : table.events())
    if (event.action == ServerTableAction::kPush) taus.push_back(event.value);
  EXPECT_THAT(taus, ElementsAre(0, 0, 0, 2));
}

TEST(ServerTable, EveryRuleMatchesOneProcess) {
  for (const char* name : {"sgd", "momentum", "adagrad", "adam"}) {
    ServerOptions options = options_of(2, 0);
    const bool momentum = std::string(name) == "momentum";
    options.optimizer.name = momentum ? "sgd" : name;
    options.optimizer.momentum = momentum ? 0.9 : 0;
    ServerTable<double> table = make_table(options, {1, -1, 0.5});
    Values w = {1, -1, 0.5}, s(3), m(3);
    for (int c = 0; c < 5; ++c) {
      const Values a = {w[0], 0.5, -1.0 + c}, b = {w[1], -0.1 * c, 0.3};
      push(table, 0, c, a, 0.1);
      push(table, 1, c, b, 0.1);
      for (int i = 0; i < 3; ++i) {
        const double g = (a[i] + b[i]) / 2;
        if (momentum) {
          m[i] = 0.9 * m[i] - 0.1 * g;
          w[i] += m[i];
        } else if (options.optimizer.name == "sgd") {
          w[i] -= 0.1 * g;
        } else if (options.optimizer.name == "adagrad") {
          s[i] += g * g;
          w[i] -= 0.1 * g / (std::sqrt(s[i]) + 1e-8);
        } else {
          m[i] = 0.9 * m[i] + 0.1 * g;
          s[i] = 0.999 * s[i] + 0.001 * g * g;
          const double mean = m[i] / (1 - std::pow(0.9, c + 1)), square = s[i] / (1 - std::pow(0.999, c + 1));
          w[i] -= 0.1 * mean / (std::sqrt(square) + 1e-8);
        }
      }
      const Values got = *read(table, 0, c + 1);
      for (int i = 0; i < 3; ++i) ASSERT_NEAR(got[i], w[i], 1e-13) << name << " clock " << c;
    }
  }
}

// Adds the gradient, and counts the updates of each element in its state.
class Adding final : public PartitionRule {
 public:
  int state_count() const override { return 1; }
  void apply(const PartitionUpdate& update) override {
    auto* w = static_cast<double*>(update.parameter);
    auto* updates = static_cast<double*>(update.states[0]);
    for (size_t i = 0; i < update.count; ++i) {
      w[i] += update.lr * static_cast<double*>(update.gradient)[i];
      EXPECT_EQ(updates[i] += 1, static_cast<double>(update.step));
    }
  }
};

TEST(ServerTable, ARuleOfTheProgramUpdatesInPlaceOfTheUpdateRule) {
  ServerOptions options = options_of(2, 0);
  options.make_rule = [] { return std::make_unique<Adding>(); };
  ServerTable<double> table = make_table(options);
  EXPECT_EQ(table.state_count(), 1);
  for (int c = 0; c < 2; ++c) {
    push(table, 0, c, {1, 2, 0}, 0.5);
    push(table, 1, c, {3, 0, 1}, 0.5);
  }
  EXPECT_THAT(*read(table, 0, 2), ElementsAre(2, 1, 0.5));
  table.request_snapshot(0);
  table.request_snapshot(1);
  Values whole;
  EXPECT_TRUE(table.try_snapshot(0, ServerTable<double>::Want::kWhole, whole));
  EXPECT_THAT(whole, ElementsAre(2, 1, 0.5, 2, 2, 2));
}

TEST(ServerTable, WorkersMayOwnPartsAndOnesThatOwnNothingHoldNobodyUp) {
  ServerTable<double> table({2, 1}, options_of(3, 0));
  table.join(0, {0});
  table.join(1, {0, 1});
  Values start = {1, 1, 1};
  table.load(1, 0, start);
  push(table, 0, 0, {2, 2});
  push(table, 1, 0, {4, 4, 5});
  EXPECT_FALSE(read(table, 0, 1));  // worker 2 may still own something
  table.join(2, {});
  EXPECT_EQ(*read(table, 0, 1), Values({-2, -2}));
  // The mean of a partition is over the workers that pushed it.
  EXPECT_EQ(*read(table, 1, 1), Values({-2, -2, -4}));
  EXPECT_EQ(table.count_of(0), 2u);
}

TEST(ServerTable, LoadsStatesAndReadsWaitForThem) {
  ServerOptions options = options_of(1, 0);
  options.optimizer.name = "adam";
  ServerTable<double> first({2, 1}, options), second({2, 1}, options);
  first.join(0, {0, 1});
  second.join(0, {0, 1});
  EXPECT_FALSE(read(first, 0, 0));  // nothing has been loaded
  first.load(0, 0, Values{1, 2, 3});
  push(first, 0, 0, {1, -1, 2}, 0.1);
  Values whole;
  first.request_snapshot(0);
  ASSERT_TRUE(first.try_snapshot(0, ServerTable<double>::Want::kWhole, whole));
  ASSERT_EQ(whole.size(), 9u);
  second.load(0, first.updates(), whole);
  push(first, 0, 1, {3, 1, 1}, 0.1);
  push(second, 0, 0, {3, 1, 1}, 0.1);
  EXPECT_EQ(*read(first, 0, 2), *read(second, 0, 1));
}

TEST(ServerTable, SnapshotsAreEqualForAllThoughOneIsAhead) {
  using Want = ServerTable<double>::Want;
  ServerTable<double> table = make_table(options_of(2, std::nullopt));
  push(table, 0, 0, {2, 0, 0});
  table.request_snapshot(0);
  Values a, b;
  EXPECT_FALSE(table.try_snapshot(0, Want::kOwn, a));  // worker 1 has not requested it
  push(table, 1, 0, {2, 0, 0});
  table.request_snapshot(1);
  ASSERT_TRUE(table.try_snapshot(0, Want::kOwn, a));
  EXPECT_FALSE(table.may_push(0));  // worker 1 must receive equal values
  ASSERT_TRUE(table.try_snapshot(1, Want::kOwn, b));
  EXPECT_TRUE(table.may_push(0));
  EXPECT_EQ(a, b);
  EXPECT_EQ(a, Values({-2, 0, 0}));
  // The snapshot does not wait for a worker that is lost.
  table.request_snapshot(0);
  EXPECT_FALSE(table.try_snapshot(0, Want::kNothing, a));
  table.retire(1, true);
  EXPECT_TRUE(table.try_snapshot(0, Want::kNothing, a));
  EXPECT_TRUE(table.may_push(0));
}

TEST(ServerTable, ASnapshotEndsTheClockOfAStraggler) {
  ServerOptions options = options_of(3, 0);
  options.backup = 1;
  ServerTable<double> table = make_table(options);
  push(table, 0, 0, {2, 0, 0});
  push(table, 1, 0, {2, 0, 0});
  table.request_snapshot(0);
  table.request_snapshot(1);
  EXPECT_EQ(push(table, 2, 0, {9, 0, 0}), PushOutcome::kDropped);
  // The other workers do not push any more: this gradient alone completes the clock.
  push(table, 2, 1, {3, 0, 0});
  EXPECT_EQ(*read(table, 2, 2), Values({-5, 0, 0}));
}

TEST(ServerTable, AWishToStopIsSeenByAllAfterTheSameClock) {
  ServerTable<double> table = make_table(options_of(2, 0));
  Values g(3), out;
  table.push(0, 0, {.stop = true}, g);
  g.assign(3, 0);
  table.push(1, 0, {}, g);
  EXPECT_TRUE(table.try_read(0, 1, 1, out)->stop);
  EXPECT_TRUE(table.try_read(1, 1, 1, out)->stop);
  ServerTable<double> later = make_table(options_of(2, 0));
  push(later, 0, 0, {0, 0, 0});
  push(later, 1, 0, {0, 0, 0});
  g.assign(3, 0);
  later.push(0, 1, {.stop = true}, g);  // a fast worker, before the other worker has read clock 1
  EXPECT_FALSE(later.try_read(1, 1, 1, out)->stop);
}

TEST(ServerTable, AsynchronousWorkersLearnTheClockAtWhichAllStop) {
  ServerTable<double> table = make_table(options_of(2, 3));
  Values g(3), out;
  for (int64_t clock = 0; clock < 3; ++clock) push(table, 0, clock, {0, 0, 0});
  push(table, 1, 0, {0, 0, 0});
  EXPECT_FALSE(table.try_read(0, 3, 1, out)->stop);
  table.push(1, 1, {.stop = true}, g);
  const auto fast = table.try_read(0, 3, 1, out), slow = table.try_read(1, 2, 1, out);
  EXPECT_TRUE(fast->stop && slow->stop);
  EXPECT_EQ(fast->stop_at, slow->stop_at);
  // The fast worker may be in step 4 already, and may then take 3 steps from its cache.
  EXPECT_GT(fast->stop_at, 3 + 1 + 3);
  g.assign(3, 0);
  table.push(1, 2, {.stop = true}, g);  // a second wish changes nothing
  EXPECT_EQ(table.try_read(1, 3, 1, out)->stop_at, fast->stop_at);
}

// The workers may go on after they have met, and meet again.
TEST(ServerTable, ALaterRequestIsToldToAllOnce) {
  ServerTable<double> table = make_table(options_of(2, 0));
  Values g(3), out;
  for (int64_t clock = 0; clock < 4; ++clock) {
    const bool asks = clock == 1 || clock == 3;
    g.assign(3, 0);
    table.push(0, clock, {.stop = asks && clock == 1}, g);
    g.assign(3, 0);
    table.push(1, clock, {.stop = asks && clock == 3}, g);
    for (int worker = 0; worker < 2; ++worker)
      EXPECT_EQ(table.try_read(worker, clock + 1, 1, out)->stop, asks) << clock;
  }
}

TEST(ServerTable, AsynchronousWorkersMeetAgain) {
  ServerTable<double> table = make_table(options_of(2, 1));
  Values g(3), out;
  const auto push_as = [&](int worker, int64_t clock, bool asks) {
    g.assign(3, 0);
    table.push(worker, clock, {.stop = asks}, g);
  };
  push_as(0, 0, true);
  push_as(1, 0, false);
  const int64_t first = table.try_read(1, 1, 1, out)->stop_at;
  for (int64_t clock = 1; clock < first; ++clock) {
    push_as(0, clock, true);  // the wish stays until the workers have met
    push_as(1, clock, false);
  }
  EXPECT_EQ(table.try_read(0, first, 1, out)->stop_at, first);
  push_as(1, first, true);
  const int64_t second = table.try_read(0, first, 1, out)->stop_at;
  EXPECT_GT(second, first + 1);
  EXPECT_EQ(table.try_read(1, first + 1, 1, out)->stop_at, second);
}

// Workers 0 and 1 own one partition each. They are the first replica, and workers 2 and 3 the second one.
ServerTable<double> warm_table() {
  ServerOptions options = options_of(4, std::nullopt);
  options.warm_updates = 2;
  options.warm_workers = 2;
  ServerTable<double> table({2, 1}, options);
  for (int w = 0; w < 4; ++w) table.join(w, {static_cast<size_t>(w % 2)});
  table.load(0, 0, Values{0, 0});
  table.load(1, 0, Values{0});
  return table;
}

TEST(ServerTable, AWarmStartLetsOneReplicaBegin) {
  ServerTable<double> table = warm_table();
  push(table, 0, 0, {1, 1});
  push(table, 0, 1, {1, 1});
  EXPECT_TRUE(read(table, 2, 0));   // its partition has two updates
  EXPECT_FALSE(read(table, 3, 0));  // its partition has none
  push(table, 1, 0, {1});
  EXPECT_FALSE(read(table, 3, 0));
  EXPECT_TRUE(read(table, 1, 1));
  push(table, 1, 1, {1});
  EXPECT_TRUE(read(table, 3, 0));
}

TEST(ServerTable, AWarmStartIsNotRepeatedWhenARunIsResumed) {
  ServerTable<double> table = warm_table();
  table.load(0, 2, Values{0, 0});
  table.load(1, 1, Values{0});
  EXPECT_TRUE(read(table, 2, 0));
  EXPECT_FALSE(read(table, 3, 0));  // the run was stopped during the warm start
}

// Nobody waits for a replica that is gone, or that waits itself.
TEST(ServerTable, AWarmStartEndsWhereItWouldLastForEver) {
  {
    ServerTable<double> table = warm_table();
    table.retire(0, true);
    EXPECT_FALSE(read(table, 2, 0));
    table.retire(1, false);
    EXPECT_TRUE(read(table, 2, 0));
    EXPECT_TRUE(read(table, 3, 0));
  }
  {
    ServerTable<double> table = warm_table();
    table.request_snapshot(1);
    EXPECT_TRUE(read(table, 3, 0));
    table.request_snapshot(3);
    EXPECT_FALSE(read(table, 3, 0));
  }
  ServerTable<double> table = warm_table();
  Values gradient{1};
  table.push(1, 0, {.lr = 1, .stop = true}, gradient);
  EXPECT_TRUE(read(table, 2, 0));  // all meet after three pushes
}

TEST(ServerTable, WithBackupWorkersAWishStays) {
  ServerOptions options = options_of(3, 0);
  options.backup = 1;
  ServerTable<double> table = make_table(options);
  Values g(3), out;
  for (int64_t clock = 0; clock < 3; ++clock) {
    for (int worker = 0; worker < 2; ++worker) {
      g.assign(3, 0);
      table.push(worker, clock, {.stop = clock == 0}, g);
    }
    EXPECT_TRUE(table.try_read(0, clock + 1, 1, out)->stop);
    EXPECT_TRUE(table.try_read(1, clock + 1, 1, out)->stop);
  }
}

TEST(ServerTable, RefusesWhatIsNotAWorkersTurn) {
  ServerTable<double> table = make_table(options_of(2, 1));
  EXPECT_THAT(fault([&] { push(table, 0, 1, {0, 0, 0}); }),
              HasSubstr("push of worker 0 at clock 1; it is at clock 0"));
  EXPECT_THAT(fault([&] { push(table, 0, 0, {0, 0}); }), HasSubstr("pushes 2 values at clock 0; it owns 3"));
  EXPECT_THAT(fault([&] { read(table, 1, 7); }), HasSubstr("read of worker 1 at clock 7"));
  EXPECT_THAT(fault([&] { table.join(1, {0}); }), HasSubstr("joined twice"));
  EXPECT_THAT(fault([&] { table.load(1, 0, Values(2)); }), HasSubstr("loads 2 values"));
  EXPECT_THAT(fault([&] { table.load(1, -1, Values(3)); }), HasSubstr("-1 updates"));
  ServerTable<double> sync({1}, options_of(2, 0));
  EXPECT_THAT(fault([&] { sync.join(0, {1}); }), HasSubstr("claims partition 1 of 1"));
  EXPECT_THAT(fault([&] { sync.join(0, {0, 0}); }), HasSubstr("ascending"));
  sync.join(1, {0});
  push(sync, 1, 0, {1});
  EXPECT_THAT(fault([&] { push(sync, 1, 0, {1}); }), HasSubstr("again"));
  EXPECT_THAT(fault([&] { push(sync, 0, 0, {1}); }), HasSubstr("has not joined or has left"));
  EXPECT_THAT(fault([&] { read(sync, 1, 9); }), HasSubstr("read of worker 1 at clock 9"));
}

TEST(ServerTable, ASumThatIsNotFiniteEndsAllWorkersWithTheReason) {
  for (const bool fixed : {true, false}) {
    ServerOptions options = options_of(3, 0);
    options.fixed_order = fixed;
    ServerTable<double> table = make_table(options, {1, 2, 3});
    const double most = std::numeric_limits<double>::max();
    push(table, 0, 0, {most, 0, 0});
    push(table, 1, 0, {most, 0, 0});
    EXPECT_THAT(fault([&] { push(table, 2, 0, {0, 0, 0}); }), HasSubstr("the sum of the workers' gradients"));
    table.retire(2, /*lost=*/true);  // the server retires a worker whose request has failed
    EXPECT_THAT(fault([&] { read(table, 0, 1); }), HasSubstr("of clock 0 is not finite"));
    EXPECT_THAT(fault([&] { push(table, 1, 1, {0, 0, 0}); }), HasSubstr("of clock 0 is not finite"));
    table.retire(0, /*lost=*/true);
    table.retire(1, /*lost=*/true);
  }
}

TEST(ServerTable, RefusesAPushThatIsNotFiniteBeforeItChangesAnything) {
  const double nan = std::nan("");
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    for (const bool fixed : {true, false}) {
      ServerOptions options = options_of(2, staleness);
      options.fixed_order = fixed;
      ServerTable<double> table = make_table(options, {1, 2, 3});
      EXPECT_THAT(fault([&] { push(table, 1, 0, {0, nan, 0}); }),
                  HasSubstr("refused the push of worker 1 at clock 0: its gradient is not finite"));
      EXPECT_THAT(fault([&] { push(table, 1, 0, {0, 0, INFINITY}); }), HasSubstr("its gradient"));
      Values good = {0, 0, 0};
      EXPECT_THAT(fault([&] { table.push(1, 0, {.lr = 1, .loss = nan}, good); }), HasSubstr("its loss"));
      EXPECT_EQ(table.parameters(), Values({1, 2, 3}));
      EXPECT_EQ(table.stats().pushes[1], 0);

      // The worker may push again, as if nothing had been refused.
      push(table, 0, 0, {2, 2, 2}, 0.5);
      push(table, 1, 0, {4, 4, 4}, 0.5);
      const double step = staleness ? 1.5 : 0.5 * (2 + 4) / 2;
      EXPECT_EQ(table.parameters(), Values({1 - step, 2 - step, 3 - step}));
    }
  }
}

TEST(ServerTable, RecordsTheOrderOfEvents) {
  ServerTable<double> table = make_table(options_of(2, 0));
  push(table, 1, 0, {1, 1, 1});
  push(table, 0, 0, {1, 1, 1});
  read(table, 0, 1);
  table.retire(1, true);
  EXPECT_THAT(table.events(), ElementsAre(ServerTableEvent{ServerTableAction::kHold, 1, 0, 0},
                                          ServerTableEvent{ServerTableAction::kHold, 0, 0, 0},
                                          ServerTableEvent{ServerTableAction::kUpdate, -1, 0, 2},
                                          ServerTableEvent{ServerTableAction::kRead, 0, 1, 0},
                                          ServerTableEvent{ServerTableAction::kRetire, 1, 1, 1}));
}

}  // namespace
}  // namespace starling
