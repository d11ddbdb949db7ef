// Simulates ranks of unequal speeds with the scheduler of portions, and checks who computes what.
#include "starling/lbfgs/portions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

// Returns the duration of an evaluation. A rank computes a portion in times[rank]. An event is the end of a
// copy. Ranks without work wait. Messages take no time.
double simulate(PortionScheduler& scheduler, const std::vector<double>& times) {
  struct Copy {
    int portion = 0;
    double end = 0;
  };
  scheduler.begin();
  std::vector<std::optional<Copy>> work(times.size());
  std::vector<int> finished(static_cast<size_t>(scheduler.portions()), 0);
  const auto give = [&](size_t rank, double now) {
    const auto portion = scheduler.next(static_cast<int>(rank));
    work[rank] = portion ? std::optional(Copy{*portion, now + times[rank]}) : std::nullopt;
  };
  for (size_t rank = 0; rank < times.size(); ++rank) give(rank, 0);
  for (;;) {
    size_t next = times.size();
    for (size_t rank = 0; rank < times.size(); ++rank)
      if (work[rank] && (next == times.size() || work[rank]->end < work[next]->end)) next = rank;
    if (next == times.size()) {
      ADD_FAILURE() << "all ranks wait, but the evaluation is not done";
      return 0;
    }
    const Copy copy = *work[next];
    if (scheduler.finish(static_cast<int>(next), copy.portion)) ++finished[static_cast<size_t>(copy.portion)];
    if (scheduler.done()) {
      EXPECT_EQ(std::count(finished.begin(), finished.end(), 1), scheduler.portions());
      return copy.end;
    }
    give(next, copy.end);
  }
}

TEST(Portions, EachCountsOnce) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const int per_rank : {1, 2, 16}) {
      for (const bool backups : {false, true}) {
        PortionScheduler scheduler({.ranks = ranks, .per_rank = per_rank, .backups = backups});
        std::vector<double> times(static_cast<size_t>(ranks), 1);
        for (int rank = 0; rank < ranks; ++rank) times[static_cast<size_t>(rank)] += 0.37 * rank;
        for (int evaluation = 1; evaluation <= 3; ++evaluation) {
          simulate(scheduler, times);
          const auto& delivered = scheduler.counts().delivered;
          EXPECT_EQ(std::accumulate(delivered.begin(), delivered.end(), int64_t{0}),
                    int64_t{ranks} * per_rank * evaluation);
        }
        if (!backups || ranks == 1) {
          EXPECT_EQ(scheduler.counts().copies, 0);
        }
      }
    }
  }
}

// p ranks, one of which has half the speed, need at least p / (p − 1/2) times the time of equal ranks.
// Portions may cost five percent more.
TEST(Portions, ASlowRankCostsItsShareOnly) {
  for (const int ranks : {2, 4, 8, 16}) {
    std::vector<double> times(static_cast<size_t>(ranks), 1);
    PortionScheduler scheduler({.ranks = ranks, .per_rank = 32});
    const double equal = simulate(scheduler, times);
    EXPECT_EQ(equal, 32);
    times.back() = 2;
    const double bound = ranks / (ranks - 0.5);
    EXPECT_LE(simulate(scheduler, times), 1.05 * bound * equal) << ranks;
    PortionScheduler whole({.ranks = ranks, .per_rank = 32, .equal = true});
    for (double& time : times) time *= 32;  // an equal share is one portion
    EXPECT_EQ(simulate(whole, times), 2 * equal);
  }
}

TEST(Portions, ABackupCopySavesAnEvaluationFromAVerySlowRank) {
  const std::vector<double> times = {1, 1, 1, 1000};
  PortionScheduler with({.ranks = 4, .per_rank = 8}), without({.ranks = 4, .per_rank = 8, .backups = false});
  EXPECT_LE(simulate(with, times), 12);
  EXPECT_EQ(simulate(without, times), 1000);
  EXPECT_EQ(with.counts().copies_first, 1);
  EXPECT_EQ(with.counts().delivered.back(), 0);
}

TEST(Portions, TheSlowestPortionIsCopiedFirstAndOnce) {
  PortionScheduler scheduler({.ranks = 3, .per_rank = 1});
  EXPECT_EQ(scheduler.next(0), 0);
  EXPECT_EQ(scheduler.next(1), 1);
  EXPECT_EQ(scheduler.next(2), 2);
  EXPECT_TRUE(scheduler.finish(2, 2));
  EXPECT_EQ(scheduler.next(2), 0);  // in work for longest
  EXPECT_TRUE(scheduler.finish(2, 0));
  EXPECT_EQ(scheduler.next(2), 1);
  EXPECT_TRUE(scheduler.finish(1, 1));
  EXPECT_FALSE(scheduler.finish(2, 1));
  EXPECT_FALSE(scheduler.finish(0, 0));
  EXPECT_TRUE(scheduler.done());
  EXPECT_EQ(scheduler.next(0), std::nullopt);
  EXPECT_EQ(scheduler.counts().copies, 2);
  EXPECT_EQ(scheduler.counts().copies_first, 1);
}

TEST(Portions, ARankGetsNoCopyOfItsOwnPortionAndNoThirdCopy) {
  PortionScheduler scheduler({.ranks = 3, .per_rank = 1});
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(scheduler.next(rank), rank);
  EXPECT_TRUE(scheduler.finish(1, 1));
  EXPECT_TRUE(scheduler.finish(2, 2));
  EXPECT_EQ(scheduler.next(1), 0);
  EXPECT_EQ(scheduler.next(2), std::nullopt);
  EXPECT_EQ(scheduler.next(0), std::nullopt);
}

TEST(Portions, AreNotMoreThanTheSamples) {
  EXPECT_EQ(count_portions({.ranks = 4, .per_rank = 32, .samples = 100}), 100);
  EXPECT_EQ(count_portions({.ranks = 4, .per_rank = 32, .samples = 200}), 128);
  EXPECT_EQ(count_portions({.ranks = 1 << 16, .per_rank = 1 << 20, .samples = 7}), 7);
  EXPECT_EQ(count_portions({.ranks = 4, .samples = 3, .equal = true}), 4);  // each rank has one
}

TEST(Portions, WhatCannotBeIsRefused) {
  EXPECT_THROW(PortionScheduler({.ranks = 0}), ConfigError);
  EXPECT_THROW(PortionScheduler({.ranks = 2, .per_rank = 0}), ConfigError);
  EXPECT_THROW(PortionScheduler({.ranks = 2, .per_rank = 2, .samples = 0}), ConfigError);
  EXPECT_THROW(count_portions({.ranks = 1 << 16, .per_rank = 1 << 20}), ConfigError);
  PortionScheduler scheduler({.ranks = 2, .per_rank = 2});
  EXPECT_THROW(scheduler.finish(0, 0), CommError);
  EXPECT_EQ(scheduler.next(0), 0);
  EXPECT_THROW(scheduler.finish(1, 0), CommError);
  EXPECT_THROW(scheduler.finish(0, 4), CommError);
  EXPECT_THROW(scheduler.finish(0, -1), CommError);
}

}  // namespace
}  // namespace starling
