// Random graphs and devices for the tests of placement.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "starling/place/graph.h"

namespace starling {

// Draws test problems. Equal seeds give equal problems.
class PlacementProblems {
 public:
  explicit PlacementProblems(uint64_t seed) : random_(seed) {}

  // Returns a number from `low` to `high`.
  double draw(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() % 1'000'003) / 1'000'003;
  }
  // Returns a number from 0 to `end` − 1.
  int below(int end) { return static_cast<int>(random_() % static_cast<uint64_t>(end)); }

  // Returns a chain of n groups.
  PlacementGraph chain(int n) {
    PlacementGraph graph{"chain", {}};
    for (int g = 0; g < n; ++g) {
      graph.groups.push_back(group(g));
      if (g > 0) graph.groups.back().inputs = {g - 1};
    }
    return graph;
  }
  // Returns a graph whose groups have up to three random inputs.
  PlacementGraph branches(int n) {
    PlacementGraph graph{"branches", {}};
    for (int g = 0; g < n; ++g) {
      graph.groups.push_back(group(g));
      const int wanted = g == 0 ? 0 : below(4);
      for (int input = g - 1; input >= 0 && input >= g - wanted; input -= 1 + below(2))
        graph.groups.back().inputs.push_back(input);
    }
    return graph;
  }
  // Returns devices whose speeds and links all differ.
  DeviceTopology devices(int count) {
    std::vector<double> speeds;
    for (int d = 0; d < count; ++d) speeds.push_back(draw(0.3, 1.5));
    DeviceTopology topology = connected_devices(speeds, {});
    for (auto& row : topology.links)
      for (DeviceLink& link : row) link = {draw(0, 0.3), draw(0.5, 20)};
    return topology;
  }
  // Returns a random placement.
  Placement placement(int groups, int devices) {
    Placement placement;
    for (int g = 0; g < groups; ++g) placement.push_back(below(devices));
    return placement;
  }

 private:
  OperationGroup group(int index) {
    OperationGroup group;
    group.name = "g" + std::to_string(index);
    group.forward_s = draw(0.1, 1);
    group.backward_s = draw(0.1, 2);
    group.update_s = draw(0, 0.5);
    group.state_bytes = draw(1, 10);
    group.kept_bytes = draw(0, 2);
    group.output_bytes = draw(0.1, 4);
    return group;
  }

  std::mt19937_64 random_;
};

}  // namespace starling
