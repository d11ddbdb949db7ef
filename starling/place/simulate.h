// Simulates one training step of a graph whose groups lie on several devices.
//
// A step has m micro-batches. Each device executes one group at a time, without interruption. It executes all
// forwards of its groups first, then all backwards, then the update of its parameters. Among what is ready, a
// lower micro-batch goes first, and then the topological order (in backward, its reverse). A chain in stages
// is therefore executed as the schedule gpipe executes it (plan/pipeline_schedule.h).
//
// The output of a group travels once to each other device that has a consumer. The gradient comes back once,
// when all consumers on that device have finished their backward. A message occupies its link for bytes /
// bandwidth, in the order of sending, and arrives a latency later. Sending does not occupy the device.
//
// A device needs this memory, where m micro-batches wait for their backward:
//
//   Σ over its groups (state + m · kept) + m · Σ over outputs that it receives
#pragma once

#include <vector>

#include "starling/place/graph.h"

namespace starling {

// The result of a simulation.
struct StepEstimate {
  double seconds = 0;                // until the last device has updated
  std::vector<double> busy_s;        // by device: computing
  std::vector<double> memory_bytes;  // by device
  double overflow = 0;               // largest share of a device's memory that is missing; 0: all fits
  // Returns true if each device has the memory that it needs.
  bool fits() const { return overflow <= 0; }
};

// The largest number of groups times micro-batches.
inline constexpr size_t kMostPasses = 10'000'000;

// Simulates placements of one graph. Immutable, so several threads may use it.
class StepSimulator {
 public:
  // Errors: those of check_graph() and check_topology(), and ConfigError for fewer than one micro-batch.
  // Also for more groups times micro-batches than kMostPasses, and for times that are too large to add.
  StepSimulator(PlacementGraph graph, DeviceTopology topology, int micro_batches);

  // Simulates one step. The placement has one device for each group. Errors: ConfigError for another number
  // of entries or an unknown device.
  StepEstimate run(const Placement& placement) const;
  // Returns what optimizers minimize: the seconds of a placement that fits. A placement that does not fit
  // costs more than every placement that fits, and the more memory is missing, the more it costs.
  double cost(const Placement& placement) const { return cost_of(run(placement)); }
  // As cost(), of an estimate.
  double cost_of(const StepEstimate& estimate) const;

  // The graph that is placed.
  const PlacementGraph& graph() const { return graph_; }
  // The devices and links.
  const DeviceTopology& topology() const { return topology_; }
  // m.
  int micro_batches() const { return micro_batches_; }
  // By group: the groups that take its output.
  const std::vector<std::vector<int>>& consumers() const { return consumers_; }

 private:
  PlacementGraph graph_;
  DeviceTopology topology_;
  int micro_batches_;
  std::vector<std::vector<int>> consumers_;
  double longest_s_ = 0;  // no placement takes longer
};

}  // namespace starling
