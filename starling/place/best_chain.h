// The best placement of a chain in contiguous stages, by dynamic programming.
//
// The model is cut into consecutive stages, and each stage has a device of its own. The step of m
// micro-batches then has a closed form, because the forwards pass through the devices and links like equal
// jobs through machines in a row (as do the backwards). Let F and B be the times of a stage, x and y those
// for which an activation and a gradient occupy a link, and U the time of an update:
//
//   T = Σ F + Σ (x + latency) + (m − 1) max(F, x)
//       + max over stages s of [ Σ from s (B + y + latency) + (m − 1) max from s (B, y) + U of s ]
//
// The search goes from the last stage to the first. For each (first group so far, devices used, device of the
// first stage) it keeps all suffixes of which none is better in every term of T. So the result is the exact
// optimum among contiguous stages. simulate.h gives equal times.
#pragma once

#include <cstdint>
#include <optional>

#include "starling/place/graph.h"
#include "starling/place/simulate.h"

namespace starling {

// The largest number of devices: the search tries every subset of them.
inline constexpr int kMostChainDevices = 8;

// The largest number of steps of the search: suffixes that it looks at or compares. It takes seconds.
inline constexpr int64_t kMostChainWork = 200'000'000;

// The best contiguous placement.
struct ChainPlacement {
  Placement placement;
  double seconds = 0;
};

// Returns the fastest contiguous placement that fits into the memories. Returns nothing if none fits, or if
// the search would need more than `most` steps. Errors: ConfigError if the graph is no chain or if there are
// more than kMostChainDevices devices.
std::optional<ChainPlacement> best_chain(const StepSimulator& simulator, int64_t most = kMostChainWork);

// Returns the device of each stage, if the graph is a chain, its stages are contiguous, and each device has
// one stage. Returns nothing otherwise.
std::optional<std::vector<int>> stages_of(const PlacementGraph& graph, const Placement& placement);

// Returns where each stage begins, followed by the number of groups. The placement must have stages_of().
std::vector<size_t> cut_of(const Placement& placement);

}  // namespace starling
