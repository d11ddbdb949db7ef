#include "starling/commands/place_policy.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/telemetry/sink.h"

namespace starling {
namespace {

class NoSink : public EventSink {
 public:
  void emit(const Event&) override {}
};

// Trains the policy on one rank.
PolicyResult policy_of_one_rank(const StepSimulator& simulator, const PolicyOptions& options) {
  at::set_num_threads(1);
  const auto group = make_single_group();
  NoSink sink;
  const SystemClock clock;
  const std::atomic<bool> stop{false};
  RunSpec spec;
  spec.train.ranks = 1;
  const RunEnvironment environment{*group, {}, {sink, clock, stop}};
  LoopState loop;
  return train_policy(simulator, options, policy_spec(spec), environment, loop);
}

TEST(PlacePolicy, ItsBestPlacementIsWithin5PercentOfAllAndItsLikelyOneWithin15) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const StepSimulator simulator(make_towers(2, 3, seed), connected_devices({1, 0.5}, {1e-4, 1e9}), 2);
    const auto best = search_all(simulator, 256);
    ASSERT_TRUE(best.has_value());
    const PolicyResult result = policy_of_one_rank(simulator, {.seed = seed, .updates = 120});
    EXPECT_GT(result.last_reward, result.first_reward);
    EXPECT_LE(result.likely.cost, best->cost * 1.15) << "seed " << seed;
    EXPECT_LE(result.best.cost, best->cost * 1.05) << "seed " << seed;
    EXPECT_DOUBLE_EQ(result.best.cost, simulator.cost(result.best.placement));
    EXPECT_DOUBLE_EQ(result.likely.cost, simulator.cost(result.likely.placement));
    EXPECT_LT(result.likely.cost, simulator.cost(balanced_placement(simulator)));
    EXPECT_EQ(result.best.simulations, 1200);
  }
}

TEST(PlacePolicy, OneRankDependsOnTheSeedOnly) {
  const StepSimulator simulator(make_towers(2, 2, 1), connected_devices({1, 0.5}, {1e-4, 1e9}), 1);
  const PolicyResult a = policy_of_one_rank(simulator, {.seed = 3, .updates = 5});
  const PolicyResult b = policy_of_one_rank(simulator, {.seed = 3, .updates = 5});
  EXPECT_EQ(a.best.placement, b.best.placement);
  EXPECT_EQ(a.last_reward, b.last_reward);
}

TEST(PlacePolicy, TheWorkersExchangeByTheirOwnKeysOnly) {
  RunSpec spec;
  spec.exchange.codec = "int8";
  spec.exchange.block_momentum = 0.5;
  for (const int ranks : {1, 3}) {
    spec.train.ranks = ranks;
    const RunSpec own = policy_spec(spec);
    EXPECT_EQ(own.exchange.codec, "none");
    EXPECT_EQ(own.exchange.block_momentum, 0);
    EXPECT_EQ(own.exchange.name == "parameter-server", ranks > 1);
    EXPECT_EQ(own.exchange.staleness == "inf", ranks > 1);
  }
}

TEST(PlacePolicy, RefusesWrongSettings) {
  EXPECT_THROW(check_policy({.updates = 0}), ConfigError);
  EXPECT_THROW(check_policy({.samples = 0}), ConfigError);
  EXPECT_THROW(check_policy({.lr = 0}), ConfigError);
  EXPECT_THROW(check_policy({.decay = 1}), ConfigError);
  EXPECT_THROW(check_policy({.entropy = -1}), ConfigError);
}

}  // namespace
}  // namespace starling
