#include "starling/server/table.h"

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

// Two slots of 2 and 1 elements that everybody owns, loaded with `start`.
Table<double> make_table(const ServerOptions& options, Values start = {0, 0, 0}) {
  Table<double> table({2, 1}, options);
  for (int w = 0; w < options.workers; ++w) table.join(w, {0, 1});
  table.load(0, 0, start);
  return table;
}

PushOutcome push(Table<double>& table, int worker, int64_t clock, Values gradient, double lr = 1.0) {
  return table.push(worker, clock, {.lr = lr, .loss = gradient[0]}, gradient);
}

std::optional<Values> read(Table<double>& table, int worker, int64_t clock) {
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

TEST(Table, SynchronousAveragesTheGradientsOfAClock) {
  for (const bool fixed : {true, false}) {
    ServerOptions options = options_of(2, 0);
    options.fixed_order = fixed;
    Table<double> table = make_table(options, {1, 2, 3});
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

TEST(Table, FixedOrderAddsInTheOrderOfTheWorkersHoweverTheyCome) {
  // In fp32 (1 + 2^30) - 2^30 is 0 and 1 + (2^30 - 2^30) is 1: the order of the additions shows.
  const float big = 1 << 30;
  const std::vector<float> gradients = {1, big, -big};
  const auto update = [&](const std::vector<int>& arrival) {
    Table<float> table({1}, options_of(3, 0));
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

TEST(Table, BackupWorkersMakeUpForTheLateAndTheLateAreDropped) {
  ServerOptions options = options_of(3, 0);
  options.backup = 1;
  Table<double> table = make_table(options);
  push(table, 0, 0, {2, 0, 0});
  EXPECT_FALSE(read(table, 0, 1));
  push(table, 2, 0, {4, 0, 0});
  EXPECT_EQ(*read(table, 0, 1), Values({-3, 0, 0}));  // two of three are enough
  push(table, 0, 1, {2, 0, 0});
  push(table, 2, 1, {2, 0, 0});
  EXPECT_EQ(push(table, 1, 0, {100, 0, 0}), PushOutcome::kDropped);
  Values out;
  const auto grant = table.try_read(1, 1, 1, out);
  EXPECT_EQ(grant->clock, 2);  // it goes on where the others are
  EXPECT_EQ(out, Values({-5, 0, 0}));
  EXPECT_EQ(push(table, 1, 2, {6, 0, 0}), PushOutcome::kHeld);
  EXPECT_EQ(table.stats().late_dropped, 1u);
  // The others have ended: nobody is left to wait for.
  table.retire(0, false);
  EXPECT_FALSE(read(table, 1, 3));
  table.retire(2, false);
  EXPECT_EQ(*read(table, 1, 3), Values({-11, 0, 0}));
  EXPECT_EQ(table.stats().retired, 0u);
}

TEST(Table, AGradientCountsAsManyTimesAsItHasSamples) {
  for (const bool fixed : {true, false}) {
    ServerOptions options = options_of(2, 0);
    options.fixed_order = fixed;
    Table<double> table = make_table(options);
    Values small = {8, 0, 4}, large = {4, 4, 0};
    table.push(0, 0, {.lr = 1, .loss = 8, .samples = 1}, small);
    table.push(1, 0, {.lr = 1, .loss = 4, .samples = 3}, large);
    Values out;
    const auto grant = table.try_read(0, 1, 1, out);
    EXPECT_EQ(out, Values({-5, -3, -1}));
    EXPECT_DOUBLE_EQ(grant->loss, 5);
  }
  Table<double> table = make_table(options_of(1, 0));
  Values g = {1, 1, 1};
  EXPECT_THAT(fault([&] { table.push(0, 0, {.samples = 0}, g); }), HasSubstr("0 samples"));
}

TEST(Table, ALossIsToldWithTheSameClockToAllAndTheOthersGoOn) {
  Table<double> table = make_table(options_of(3, 0));
  push(table, 2, 0, {6, 0, 0});
  table.retire(2, true);  // what it has pushed counts
  push(table, 0, 0, {3, 0, 0});
  push(table, 1, 0, {0, 0, 0});
  Values out;
  EXPECT_EQ(table.try_read(0, 1, 1, out)->lost, 1);
  EXPECT_EQ(out, Values({-3, 0, 0}));
  table.retire(0, true);  // at clock 1: worker 1 hears of it at clock 2, whenever it asks
  EXPECT_EQ(table.try_read(1, 1, 1, out)->lost, 1);
  push(table, 1, 1, {1, 0, 0});
  EXPECT_EQ(table.try_read(1, 2, 1, out)->lost, 2);
  EXPECT_EQ(out, Values({-4, 0, 0}));
  EXPECT_THAT(table.stats().lost, ElementsAre(2, 0));
}

TEST(Table, AClockThatALossBreaksOffIsMadeAgainByThoseWhoAreLeft) {
  for (const bool fixed : {true, false}) {
    ServerOptions options = options_of(4, 0);
    options.fixed_order = fixed;
    options.redo_after_loss = true;
    Table<double> table = make_table(options);
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
              PushOutcome::kDropped);  // of the batch as it was shared out before
    EXPECT_EQ(table.try_read(1, 1, 1, out)->clock, 0);
    EXPECT_EQ(out, Values({0, 0, 0}));
    EXPECT_EQ(push(table, 0, 0, {2, 0, 0}), PushOutcome::kHeld);
    EXPECT_FALSE(read(table, 0, 1));
    EXPECT_EQ(push(table, 1, 0, {4, 0, 0}), PushOutcome::kHeld);
    EXPECT_EQ(table.try_read(0, 1, 1, out)->clock, 1);
    EXPECT_EQ(out, Values({-3, 0, 0}));
    // The last one finishes alone; what a lost one had pushed counts where nothing else is missing.
    EXPECT_EQ(table.try_read(1, 1, 1, out)->lost, 2);
    push(table, 0, 1, {1, 0, 0});
    table.retire(0, true);
    push(table, 1, 1, {3, 0, 0});
    EXPECT_EQ(table.try_read(1, 2, 1, out)->lost, 3);
    EXPECT_EQ(out, Values({-5, 0, 0}));
    EXPECT_EQ(table.stats().late_dropped, 0u);
  }
}

TEST(Table, OfAsynchronousWorkersThoseThatAreLeftShareTheStep) {
  Table<double> table = make_table(options_of(4, std::nullopt));
  push(table, 0, 0, {4, 0, 0});
  table.retire(1, true);
  table.retire(2, false);  // has ended in order
  push(table, 0, 1, {3, 0, 0});
  Values out;
  EXPECT_EQ(table.try_read(3, 0, 1, out)->lost, 1);
  EXPECT_EQ(out, Values({-2, 0, 0}));
}

TEST(Table, AReadSeesWhatTheBoundPromisesAndWaitsForNoMore) {
  Table<double> table = make_table(options_of(2, 2));
  for (int64_t c = 0; c < 3; ++c) {
    ASSERT_TRUE(read(table, 0, c)) << c;
    push(table, 0, c, {1, 0, 0});
  }
  EXPECT_FALSE(read(table, 0, 3));  // needs worker 1's update of clock 0
  push(table, 1, 0, {10, 0, 0});
  // Own updates at once, each with lr / 2.
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

TEST(Table, TheBoundHoldsOnEveryReadOfRandomInterleavings) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 60; ++trial) {
    const int workers = 2 + static_cast<int>(random() % 4);
    const int64_t bound = static_cast<int64_t>(random() % 4) + 1;
    ServerOptions options = options_of(workers, bound);
    options.lambda.assign(static_cast<size_t>(workers), 1.0 / workers);  // also after a loss
    Table<double> table = make_table(options);
    std::vector<int64_t> clock(workers, 0);
    std::vector<bool> has_read(workers, false), gone(workers, false);
    std::vector<double> own(workers, 0);  // what each has pushed, in units of a step
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
      EXPECT_DOUBLE_EQ(out[1], -all);  // its own and all that have come
      has_read[w] = true;
    }
    EXPECT_LE(table.stats().max_staleness, bound);
  }
}

TEST(Table, AsynchronousWeighsByWorkerAndStaleness) {
  ServerOptions options = options_of(2, std::nullopt);
  options.lambda = {1.0, 0.25};
  options.weight_by_staleness = true;
  Table<double> table = make_table(options);
  read(table, 0, 0);
  read(table, 1, 0);
  push(table, 0, 0, {8, 0, 0});  // τ = 0
  push(table, 1, 0, {8, 0, 0});  // λ = 1/4, τ = 1
  push(table, 0, 1, {8, 0, 0});  // τ = 2: one's own counts, too
  EXPECT_DOUBLE_EQ(*read(table, 0, 2)->begin(), -(8.0 + 8.0 * 0.25 / 2 + 8.0 / 3));
  EXPECT_EQ(table.events()[3].value, 1);
  EXPECT_EQ(table.events()[4].value, 2);
}

TEST(Table, EveryRuleMatchesOneProcess) {
  for (const char* name : {"sgd", "momentum", "adagrad", "adam"}) {
    ServerOptions options = options_of(2, 0);
    const bool momentum = std::string(name) == "momentum";
    options.optimizer.name = momentum ? "sgd" : name;
    options.optimizer.momentum = momentum ? 0.9 : 0;
    Table<double> table = make_table(options, {1, -1, 0.5});
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

TEST(Table, WorkersMayOwnPartsAndOnesThatOwnNothingHoldNobodyUp) {
  Table<double> table({2, 1}, options_of(3, 0));
  table.join(0, {0});
  table.join(1, {0, 1});
  Values start = {1, 1, 1};
  table.load(1, 0, start);
  push(table, 0, 0, {2, 2});
  push(table, 1, 0, {4, 4, 5});
  EXPECT_FALSE(read(table, 0, 1));  // worker 2 may own something yet
  table.join(2, {});
  EXPECT_EQ(*read(table, 0, 1), Values({-2, -2}));
  EXPECT_EQ(*read(table, 1, 1), Values({-2, -2, -4}));  // the mean of a slot is over those that pushed it
  EXPECT_EQ(table.count_of(0), 2u);
}

TEST(Table, LoadsStatesAndReadsWaitForThem) {
  ServerOptions options = options_of(1, 0);
  options.optimizer.name = "adam";
  Table<double> first({2, 1}, options), second({2, 1}, options);
  first.join(0, {0, 1});
  second.join(0, {0, 1});
  EXPECT_FALSE(read(first, 0, 0));  // nothing has been loaded
  first.load(0, 0, Values{1, 2, 3});
  push(first, 0, 0, {1, -1, 2}, 0.1);
  Values whole;
  first.request_snapshot(0);
  ASSERT_TRUE(first.try_snapshot(0, Table<double>::Want::kWhole, whole));
  ASSERT_EQ(whole.size(), 9u);
  second.load(0, first.updates(), whole);
  push(first, 0, 1, {3, 1, 1}, 0.1);
  push(second, 0, 0, {3, 1, 1}, 0.1);
  EXPECT_EQ(*read(first, 0, 2), *read(second, 0, 1));
}

TEST(Table, SnapshotsAreEqualForAllThoughOneIsAhead) {
  using Want = Table<double>::Want;
  Table<double> table = make_table(options_of(2, std::nullopt));
  push(table, 0, 0, {2, 0, 0});
  table.request_snapshot(0);
  Values a, b;
  EXPECT_FALSE(table.try_snapshot(0, Want::kOwn, a));  // worker 1 has not come to it
  push(table, 1, 0, {2, 0, 0});
  table.request_snapshot(1);
  ASSERT_TRUE(table.try_snapshot(0, Want::kOwn, a));
  EXPECT_FALSE(table.may_push(0));  // worker 1 is to see the same
  ASSERT_TRUE(table.try_snapshot(1, Want::kOwn, b));
  EXPECT_TRUE(table.may_push(0));
  EXPECT_EQ(a, b);
  EXPECT_EQ(a, Values({-2, 0, 0}));
  // A worker that is lost is not waited for.
  table.request_snapshot(0);
  EXPECT_FALSE(table.try_snapshot(0, Want::kNothing, a));
  table.retire(1, true);
  EXPECT_TRUE(table.try_snapshot(0, Want::kNothing, a));
  EXPECT_TRUE(table.may_push(0));
}

TEST(Table, ASnapshotEndsTheClockOfAStraggler) {
  ServerOptions options = options_of(3, 0);
  options.backup = 1;
  Table<double> table = make_table(options);
  push(table, 0, 0, {2, 0, 0});
  push(table, 1, 0, {2, 0, 0});
  table.request_snapshot(0);
  table.request_snapshot(1);
  EXPECT_EQ(push(table, 2, 0, {9, 0, 0}), PushOutcome::kDropped);
  push(table, 2, 1, {3, 0, 0});  // the others will not come: its gradient alone makes the clock
  EXPECT_EQ(*read(table, 2, 2), Values({-5, 0, 0}));
}

TEST(Table, AWishToStopIsSeenByAllAfterTheSameClock) {
  Table<double> table = make_table(options_of(2, 0));
  Values g(3), out;
  table.push(0, 0, {.stop = true}, g);
  g.assign(3, 0);
  table.push(1, 0, {}, g);
  EXPECT_TRUE(table.try_read(0, 1, 1, out)->stop);
  EXPECT_TRUE(table.try_read(1, 1, 1, out)->stop);
  Table<double> later = make_table(options_of(2, 0));
  push(later, 0, 0, {0, 0, 0});
  push(later, 1, 0, {0, 0, 0});
  g.assign(3, 0);
  later.push(0, 1, {.stop = true}, g);  // a fast worker, before the other has read clock 1
  EXPECT_FALSE(later.try_read(1, 1, 1, out)->stop);
}

TEST(Table, RefusesWhatIsNotAWorkersTurn) {
  Table<double> table = make_table(options_of(2, 1));
  EXPECT_THAT(fault([&] { push(table, 0, 1, {0, 0, 0}); }),
              HasSubstr("push of worker 0 at clock 1; it is at clock 0"));
  EXPECT_THAT(fault([&] { push(table, 0, 0, {0, 0}); }), HasSubstr("pushes 2 values at clock 0; it owns 3"));
  EXPECT_THAT(fault([&] { read(table, 1, 7); }), HasSubstr("read of worker 1 at clock 7"));
  EXPECT_THAT(fault([&] { table.join(1, {0}); }), HasSubstr("joined twice"));
  EXPECT_THAT(fault([&] { table.load(1, 0, Values(2)); }), HasSubstr("loads 2 values"));
  EXPECT_THAT(fault([&] { table.load(1, -1, Values(3)); }), HasSubstr("-1 updates"));
  Table<double> sync({1}, options_of(2, 0));
  EXPECT_THAT(fault([&] { sync.join(0, {1}); }), HasSubstr("claims partition 1 of 1"));
  EXPECT_THAT(fault([&] { sync.join(0, {0, 0}); }), HasSubstr("ascending"));
  sync.join(1, {0});
  push(sync, 1, 0, {1});
  EXPECT_THAT(fault([&] { push(sync, 1, 0, {1}); }), HasSubstr("again"));
  EXPECT_THAT(fault([&] { push(sync, 0, 0, {1}); }), HasSubstr("does not take part"));
  EXPECT_THAT(fault([&] { read(sync, 1, 9); }), HasSubstr("read of worker 1 at clock 9"));
}

TEST(Table, RecordsTheOrderOfEvents) {
  Table<double> table = make_table(options_of(2, 0));
  push(table, 1, 0, {1, 1, 1});
  push(table, 0, 0, {1, 1, 1});
  read(table, 0, 1);
  table.retire(1, true);
  EXPECT_THAT(table.events(),
              ElementsAre(TableEvent{TableAction::kHold, 1, 0, 0}, TableEvent{TableAction::kHold, 0, 0, 0},
                          TableEvent{TableAction::kUpdate, -1, 0, 2}, TableEvent{TableAction::kRead, 0, 1, 0},
                          TableEvent{TableAction::kRetire, 1, 1, 1}));
}

}  // namespace
}  // namespace starling
