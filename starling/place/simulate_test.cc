#include "starling/place/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "starling/base/error.h"
#include "starling/place/place_test_graphs.h"

namespace starling {
namespace {

// A simulator without events and queues: it looks through all tasks and messages again and again, and moves
// the clock to the next moment at which one of them ends. It shares no code with StepSimulator.
class NaiveStep {
 public:
  NaiveStep(const PlacementGraph& graph, const DeviceTopology& topology, int m, const Placement& placement)
      : graph_(graph), topology_(topology), m_(m), placement_(placement) {}

  double seconds() {
    const size_t tasks = 2 * graph_.groups.size() * static_cast<size_t>(m_);
    while (ended_.size() < tasks) {
      while (start_something()) continue;
      double next = std::numeric_limits<double>::infinity();
      for (const auto& [task, end] : running_) next = std::min(next, end);
      for (const auto& [message, arrival] : arrives_)
        if (arrival > now_) next = std::min(next, arrival);
      now_ = next;
      end_tasks();
    }
    double last = 0;
    for (int d = 0; d < topology_.size(); ++d) {
      double end = 0, update = 0;
      for (size_t g = 0; g < placement_.size(); ++g) {
        if (placement_[g] != d) continue;
        update += graph_.groups[g].update_s / topology_.devices[d].speed;
        for (int i = 0; i < m_; ++i) end = std::max(end, ended_.at({true, i, static_cast<int>(g)}));
      }
      last = std::max(last, end + update);
    }
    return last;
  }

 private:
  using Task = std::tuple<bool, int, int>;  // backward, micro-batch, group
  using Message =
      std::tuple<bool, int, int, int>;  // gradient, micro-batch, group of the output, other device

  std::vector<int> consumers(int g) const {
    std::vector<int> found;
    for (size_t c = 0; c < graph_.groups.size(); ++c)
      for (const int input : graph_.groups[c].inputs)
        if (input == g) found.push_back(static_cast<int>(c));
    return found;
  }

  bool arrived(const Message& message) const {
    const auto it = arrives_.find(message);
    return it != arrives_.end() && it->second <= now_;
  }

  bool ready(const Task& task) const {
    const auto& [backward, i, g] = task;
    const int d = placement_[g];
    if (!backward) {
      for (const int input : graph_.groups[g].inputs) {
        const bool here = placement_[input] == d;
        if (here ? !ended_.count({false, i, input}) : !arrived({false, i, input, d})) return false;
      }
      return true;
    }
    for (size_t other = 0; other < placement_.size(); ++other)  // all forwards of the device come first
      for (int k = 0; k < m_; ++k)
        if (placement_[other] == d && !ended_.count({false, k, static_cast<int>(other)})) return false;
    for (const int consumer : consumers(g)) {
      const bool here = placement_[consumer] == d;
      if (here ? !ended_.count({true, i, consumer}) : !arrived({true, i, g, placement_[consumer]}))
        return false;
    }
    return true;
  }

  bool start_something() {
    for (int d = 0; d < topology_.size(); ++d) {
      if (std::any_of(running_.begin(), running_.end(),
                      [&](const auto& item) { return placement_[std::get<2>(item.first)] == d; }))
        continue;
      for (const bool backward : {false, true}) {
        for (int i = 0; i < m_; ++i) {
          for (size_t k = 0; k < placement_.size(); ++k) {
            const int g = static_cast<int>(backward ? placement_.size() - 1 - k : k);
            const Task task{backward, i, g};
            if (placement_[g] != d || running_.count(task) || ended_.count(task) || !ready(task)) continue;
            const OperationGroup& group = graph_.groups[g];
            running_[task] =
                now_ + (backward ? group.backward_s : group.forward_s) / topology_.devices[d].speed;
            return true;
          }
        }
      }
    }
    return false;
  }

  void end_tasks() {
    const auto running = running_;
    for (const auto& [task, end] : running) {
      if (end > now_) continue;
      running_.erase(task);
      ended_[task] = end;
      const auto& [backward, i, g] = task;
      if (!backward) {
        std::set<int> others;
        for (const int consumer : consumers(g)) others.insert(placement_[consumer]);
        others.erase(placement_[g]);
        for (const int other : others) send({false, i, g, other}, placement_[g], other, g);
        continue;
      }
      for (const int input : graph_.groups[g].inputs) {
        const int here = placement_[g];
        bool last = placement_[input] != here;
        for (const int consumer : consumers(input))
          if (placement_[consumer] == here && !ended_.count({true, i, consumer})) last = false;
        if (last) send({true, i, input, here}, here, placement_[input], input);
      }
    }
  }

  void send(const Message& message, int from, int to, int g) {
    double& free = free_[{from, to}];
    free = std::max(free, now_) + graph_.groups[g].output_bytes / topology_.links[from][to].bytes_per_s;
    arrives_[message] = free + topology_.links[from][to].latency_s;
  }

  const PlacementGraph& graph_;
  const DeviceTopology& topology_;
  const int m_;
  const Placement& placement_;
  double now_ = 0;
  std::map<Task, double> running_, ended_;
  std::map<Message, double> arrives_;
  std::map<std::pair<int, int>, double> free_;
};

OperationGroup simple(double forward, double backward, std::vector<int> inputs, double bytes = 0) {
  OperationGroup group;
  group.name = "simple";
  group.forward_s = forward;
  group.backward_s = backward;
  group.output_bytes = bytes;
  group.inputs = std::move(inputs);
  return group;
}

TEST(StepSimulator, OneDeviceTakesTheSumOfAllTimes) {
  const PlacementGraph graph{"two", {simple(1, 2, {}), simple(3, 4, {0})}};
  const StepSimulator simulator(graph, connected_devices({0.5}, {}), 3);
  const StepEstimate estimate = simulator.run({0, 0});
  EXPECT_DOUBLE_EQ(estimate.seconds, 3 * (1 + 2 + 3 + 4) / 0.5);
  EXPECT_THAT(estimate.busy_s, testing::ElementsAre(testing::DoubleEq(60)));
}

TEST(StepSimulator, TwoStagesOverlapAndMessagesTakeTheirTime) {
  // Forward: 1 + (2 / 4 + 0.25) + 1 per micro-batch, and the second one follows 1 later. Backward is alike.
  const PlacementGraph graph{"two", {simple(1, 1, {}, 2), simple(1, 1, {0})}};
  const StepSimulator simulator(graph, connected_devices({1, 1}, {0.25, 4}), 2);
  EXPECT_DOUBLE_EQ(simulator.run({0, 1}).seconds, 2 * (1 + 0.75 + 1 + 1));
}

TEST(StepSimulator, AnOutputTravelsOnceToADevice) {
  // Two consumers on the other device: one message of 4 s. With two messages, the second would arrive at 9 s.
  const PlacementGraph graph{"fork", {simple(1, 0, {}, 4), simple(1, 0, {0}), simple(1, 0, {0})}};
  const StepSimulator simulator(graph, connected_devices({1, 1}, {0, 1}), 1);
  EXPECT_DOUBLE_EQ(simulator.run({0, 1, 1}).seconds, 1 + 4 + 2 + 4);
}

TEST(StepSimulator, EqualsANaiveSimulatorOnRandomGraphs) {
  PlacementProblems problems(7);
  for (int round = 0; round < 150; ++round) {
    const int groups = 2 + problems.below(7), devices = 1 + problems.below(3), m = 1 + problems.below(4);
    const PlacementGraph graph = round % 2 == 0 ? problems.branches(groups) : problems.chain(groups);
    const DeviceTopology topology = problems.devices(devices);
    const StepSimulator simulator(graph, topology, m);
    for (int trial = 0; trial < 4; ++trial) {
      const Placement placement = problems.placement(groups, devices);
      const double naive = NaiveStep(graph, topology, m, placement).seconds();
      ASSERT_NEAR(simulator.run(placement).seconds, naive, 1e-9 * naive)
          << "round " << round << ", " << testing::PrintToString(placement);
    }
  }
}

TEST(StepSimulator, CountsMemoryAndPricesWhatDoesNotFit) {
  PlacementGraph graph{"two", {simple(1, 1, {}, 3), simple(1, 1, {0}, 5)}};
  graph.groups[0].state_bytes = 10;
  graph.groups[0].kept_bytes = 2;
  graph.groups[1].state_bytes = 20;
  graph.groups[1].kept_bytes = 1;
  const StepSimulator simulator(graph, connected_devices({1, 0.01}, {1, 1}, 26), 2);
  const StepEstimate split = simulator.run({0, 1});
  EXPECT_THAT(split.memory_bytes, testing::ElementsAre(10 + 2 * 2, 20 + 2 * 1 + 2 * 3));
  EXPECT_FALSE(split.fits());  // 28 of 26 bytes
  const StepEstimate one = simulator.run({0, 0});
  EXPECT_THAT(one.memory_bytes, testing::ElementsAre(36, 0));
  EXPECT_NEAR(one.overflow, 36.0 / 26 - 1, 1e-12);
  EXPECT_GT(simulator.cost({0, 0}), simulator.cost({0, 1}));  // although it is faster

  const StepSimulator larger(graph, connected_devices({1, 0.01}, {1, 1}, 30), 2);
  EXPECT_TRUE(larger.run({0, 1}).fits());
  EXPECT_GT(larger.cost({0, 0}), larger.cost({0, 1}));
  EXPECT_DOUBLE_EQ(larger.cost({0, 1}), larger.run({0, 1}).seconds);
}

TEST(StepSimulator, RefusesWrongProblems) {
  const PlacementGraph graph{"one", {simple(1, 1, {})}};
  const DeviceTopology two = connected_devices({1, 1}, {});
  EXPECT_THROW(StepSimulator(graph, two, 0), ConfigError);
  EXPECT_THROW(StepSimulator({"none", {}}, two, 1), ConfigError);
  EXPECT_THROW(StepSimulator({"late", {simple(1, 1, {0})}}, two, 1), ConfigError);
  EXPECT_THROW(StepSimulator({"twice", {simple(1, 1, {}), simple(1, 1, {0, 0})}}, two, 1), ConfigError);
  EXPECT_THROW(StepSimulator({"negative", {simple(-1, 1, {})}}, two, 1), ConfigError);
  EXPECT_THROW(StepSimulator(graph, connected_devices({}, {}), 1), ConfigError);
  EXPECT_THROW(StepSimulator(graph, connected_devices({0}, {}), 1), ConfigError);
  EXPECT_THROW(StepSimulator(graph, connected_devices({1}, {}, 0), 1), ConfigError);
  EXPECT_THROW(StepSimulator(graph, connected_devices({1, 1}, {-1, 1}), 1), ConfigError);
  EXPECT_THROW(StepSimulator(graph, connected_devices({1, 1}, {0, 0}), 1), ConfigError);
  EXPECT_THROW(StepSimulator({"no time", {simple(0, 0, {}, 3)}}, two, 1), ConfigError);
  EXPECT_THROW(StepSimulator({"too long", {simple(1e308, 1e308, {})}}, two, 1), ConfigError);
  EXPECT_THROW(StepSimulator({"many bytes", {simple(1, 1, {}, 1e308), simple(1, 1, {}, 1e308)}}, two, 1),
               ConfigError);
  EXPECT_THROW(StepSimulator(graph, connected_devices({1e-320}, {}), 1), ConfigError);
  EXPECT_THROW(StepSimulator(graph, connected_devices(std::vector<double>(kMostDevices + 1, 1), {}), 1),
               ConfigError);
  EXPECT_THROW(StepSimulator(graph, two, static_cast<int>(kMostPasses) + 1), ConfigError);
  const StepSimulator simulator(graph, two, 1);
  EXPECT_THROW(simulator.run({0, 0}), ConfigError);
  EXPECT_THROW(simulator.run({2}), ConfigError);
  EXPECT_THROW(simulator.run({-1}), ConfigError);
}

}  // namespace
}  // namespace starling
