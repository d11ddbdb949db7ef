// Runs all methods of device placement on one problem and compares what they find.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/commands/place_policy.h"
#include "starling/place/search.h"

namespace starling {

// What one method has found.
struct MethodResult {
  std::string method;
  FoundPlacement found;
  bool fits = true;  // into the memories
};

// The results of all methods.
struct MethodTable {
  std::vector<MethodResult> rows;
  PolicyResult policy;
  double best = 0;           // the lowest seconds of a placement that fits; infinity if none fits
  bool exhaustive = false;   // whether all placements were simulated
  bool interrupted = false;  // by a signal: what is missing was not searched; equal on all ranks
};

// The largest number of placements that the exhaustive search simulates.
inline constexpr int64_t kMostExhaustive = 100'000;

// Returns the balanced cut and the fastest device alone, then what dynamic programming (for chains that are
// not too long), simulated annealing, the policy gradient and exhaustive search (where possible) find.
// Collective: every rank searches, and the ranks train the policy together.
MethodTable compare_methods(const StepSimulator& simulator, const AnnealingOptions& annealing,
                            const PolicyOptions& policy, const RunSpec& spec,
                            const RunEnvironment& environment, LoopState& loop);

// Returns the table as text, with one line for each method.
std::string to_text(const MethodTable& table);

// Returns one JSON line for each method. graph: its name.
std::vector<std::string> to_json(const MethodTable& table, const std::string& graph);

// Returns the devices as text, one after another: "0×4 1×9" are four groups on device 0 and nine on device 1.
std::string placement_text(const Placement& placement);

// Returns the `count` fastest different placements of the table that are contiguous stages on at most `ranks`
// devices and fit.
std::vector<Placement> best_stages(const MethodTable& table, const StepSimulator& simulator, size_t count,
                                   int ranks);

}  // namespace starling
