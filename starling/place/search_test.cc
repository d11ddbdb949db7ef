#include "starling/place/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "starling/base/error.h"
#include "starling/place/best_chain.h"
#include "starling/place/place_test_graphs.h"

namespace starling {
namespace {

// Returns the lowest simulated cost of all contiguous placements whose stages have devices of their own.
double best_of_all_cuts(const StepSimulator& simulator) {
  const int n = static_cast<int>(simulator.graph().groups.size()), devices = simulator.topology().size();
  double best = std::numeric_limits<double>::infinity();
  const std::function<void(Placement)> extend = [&](const Placement& begun) {
    const int begin = static_cast<int>(begun.size());
    if (begin == n) {
      const StepEstimate estimate = simulator.run(begun);
      if (estimate.fits()) best = std::min(best, estimate.seconds);
      return;
    }
    for (int device = 0; device < devices; ++device) {
      if (std::count(begun.begin(), begun.end(), device) > 0) continue;
      for (int end = begin + 1; end <= n; ++end) {
        Placement longer = begun;
        longer.resize(static_cast<size_t>(end), device);
        extend(longer);
      }
    }
  };
  extend({});
  return best;
}

TEST(BestChain, EqualsAllContiguousPlacements) {
  PlacementProblems problems(11);
  for (int round = 0; round < 120; ++round) {
    const int groups = 1 + problems.below(7), devices = 1 + problems.below(3), m = 1 + problems.below(5);
    const StepSimulator simulator(problems.chain(groups), problems.devices(devices), m);
    const auto found = best_chain(simulator);
    ASSERT_TRUE(found.has_value());
    const double best = best_of_all_cuts(simulator);
    EXPECT_NEAR(found->seconds, best, 1e-9 * best) << "round " << round;
    EXPECT_NEAR(simulator.run(found->placement).seconds, found->seconds, 1e-9 * best);
    EXPECT_TRUE(stages_of(simulator.graph(), found->placement).has_value());
  }
}

TEST(BestChain, ObeysMemoryLimits) {
  PlacementProblems problems(12);
  int none = 0, limited = 0;
  for (int round = 0; round < 60; ++round) {
    const PlacementGraph graph = problems.chain(5);
    DeviceTopology topology = problems.devices(3);
    const StepSimulator free(graph, topology, 2);
    for (PlacementDevice& device : topology.devices) device.memory_bytes = problems.draw(8, 40);
    const StepSimulator simulator(graph, topology, 2);
    const auto found = best_chain(simulator);
    const double best = best_of_all_cuts(simulator);
    ASSERT_EQ(found.has_value(), best < std::numeric_limits<double>::infinity()) << "round " << round;
    if (!found) {
      ++none;
      continue;
    }
    EXPECT_NEAR(found->seconds, best, 1e-9 * best);
    limited += found->seconds > best_chain(free)->seconds * (1 + 1e-9) ? 1 : 0;
  }
  EXPECT_GT(none, 0);
  EXPECT_GT(limited, 10);
}

TEST(BestChain, RefusesBranchesAndManyDevices) {
  PlacementProblems problems(13);
  const StepSimulator branches(make_towers(2, 1, 1), problems.devices(2), 1);
  EXPECT_THROW(best_chain(branches), ConfigError);
  const StepSimulator many(problems.chain(3), problems.devices(kMostChainDevices + 1), 1);
  EXPECT_THROW(best_chain(many), ConfigError);
}

TEST(BestChain, GivesUpIfTheSearchIsTooLong) {
  PlacementProblems problems(17);
  const StepSimulator simulator(problems.chain(12), problems.devices(3), 2);
  EXPECT_TRUE(best_chain(simulator).has_value());
  EXPECT_FALSE(best_chain(simulator, 100).has_value());   // before it begins
  EXPECT_FALSE(best_chain(simulator, 3000).has_value());  // on the way
  const StepSimulator long_chain(problems.chain(5000), problems.devices(kMostChainDevices), 1);
  EXPECT_FALSE(best_chain(long_chain).has_value());
}

TEST(StagesOf, NamesTheDevicesOfContiguousStages) {
  PlacementProblems problems(14);
  const PlacementGraph chain = problems.chain(4);
  EXPECT_EQ(stages_of(chain, {2, 2, 0, 0}), (std::vector<int>{2, 0}));
  EXPECT_THAT(cut_of({2, 2, 0, 0}), testing::ElementsAre(0, 2, 4));
  EXPECT_EQ(stages_of(chain, {0, 1, 0, 0}), std::nullopt);
  EXPECT_EQ(stages_of(make_towers(2, 1, 1), {0, 0, 0, 0}), std::nullopt);
}

TEST(SearchAll, FindsTheLowestCost) {
  PlacementProblems problems(15);
  const StepSimulator simulator(problems.branches(5), problems.devices(3), 2);
  const auto best = search_all(simulator, 243);
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(best->simulations, 243);
  EXPECT_DOUBLE_EQ(best->cost, simulator.cost(best->placement));
  for (int trial = 0; trial < 200; ++trial) EXPECT_GE(simulator.cost(problems.placement(5, 3)), best->cost);
  EXPECT_FALSE(search_all(simulator, 242).has_value());
  EXPECT_FALSE(search_all(simulator, 243, [] { return true; }).has_value());
}

TEST(Anneal, IsWithin5PercentOfTheBestOnBranchingGraphs) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    PlacementProblems problems(seed);
    const StepSimulator simulator(seed % 2 == 0 ? make_towers(3, 3, seed) : problems.branches(9),
                                  connected_devices({1, 0.5}, {1e-4, 1e9}), 3);
    const auto best = search_all(simulator, 1 << 11);
    ASSERT_TRUE(best.has_value());
    const FoundPlacement found = anneal(simulator, {.seed = seed, .moves = 1500});
    EXPECT_LE(found.cost, best->cost * 1.05) << "seed " << seed;
    EXPECT_DOUBLE_EQ(found.cost, simulator.cost(found.placement));
    EXPECT_LE(found.cost, simulator.cost(balanced_placement(simulator)));
  }
}

TEST(Anneal, FindsWhatFits) {
  // The placements from which it begins do not fit. Only a few of the 512 placements fit.
  const PlacementGraph graph = make_towers(2, 3, 3);
  double bytes = 0;
  for (const OperationGroup& group : graph.groups) bytes += group.state_bytes + group.kept_bytes;
  DeviceTopology topology = connected_devices({1, 0.25}, {1e-4, 1e9});
  topology.devices[0].memory_bytes = 0.75 * bytes;
  topology.devices[1].memory_bytes = 0.45 * bytes;
  const StepSimulator simulator(graph, topology, 1);
  const auto best = search_all(simulator, 512);
  ASSERT_TRUE(simulator.run(best->placement).fits());
  const FoundPlacement found = anneal(simulator, {.seed = 4, .moves = 1500});
  EXPECT_TRUE(simulator.run(found.placement).fits());
  EXPECT_LE(found.cost, best->cost * 1.05);
}

TEST(Anneal, DependsOnTheSeedOnly) {
  const StepSimulator simulator(make_towers(4, 4, 2), connected_devices({1, 0.5, 0.5}, {1e-4, 1e9}), 2);
  const FoundPlacement a = anneal(simulator, {.seed = 5, .moves = 300});
  const FoundPlacement b = anneal(simulator, {.seed = 5, .moves = 300});
  EXPECT_EQ(a.placement, b.placement);
  EXPECT_EQ(a.simulations, 304);  // 300 moves, 3 single devices, 1 balanced placement
  EXPECT_EQ(anneal(simulator, {.moves = 1}).simulations, 5);
  EXPECT_EQ(anneal(simulator, {.moves = 7}).simulations, 11);
  EXPECT_NE(anneal(simulator, {.seed = 6, .moves = 8}).placement,
            anneal(simulator, {.seed = 7, .moves = 8}).placement);
  EXPECT_THROW(anneal(simulator, {.moves = 0}), ConfigError);
  EXPECT_THROW(anneal(simulator, {.first_share = 0}), ConfigError);
}

TEST(Anneal, EndsWhenItIsTold) {
  const StepSimulator simulator(make_towers(4, 4, 2), connected_devices({1, 0.5, 0.5}, {1e-4, 1e9}), 2);
  const FoundPlacement none = anneal(simulator, {.moves = 4000}, [] { return true; });
  EXPECT_EQ(none.simulations, 4);
  int asked = 0;
  const FoundPlacement some = anneal(simulator, {.moves = 4000}, [&] { return ++asked > 3; });
  EXPECT_EQ(some.simulations, 4 + 3 * 64);
  EXPECT_DOUBLE_EQ(some.cost, simulator.cost(some.placement));
}

TEST(BalancedPlacement, IsTheCutOfAPipelineWithoutAPlan) {
  PlacementGraph graph = PlacementProblems(16).chain(4);
  const double seconds[] = {1, 1, 1, 3};
  for (size_t g = 0; g < 4; ++g) {
    graph.groups[g].forward_s = seconds[g];
    graph.groups[g].backward_s = 0;
  }
  const StepSimulator simulator(graph, connected_devices({1, 0.1}, {}), 1);
  EXPECT_THAT(balanced_placement(simulator), testing::ElementsAre(0, 0, 0, 1));
}

}  // namespace
}  // namespace starling
