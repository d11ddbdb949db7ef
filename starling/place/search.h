// Searches for the device of each group: exhaustive search, simulated annealing, and simple placements to
// compare with.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "starling/place/simulate.h"

namespace starling {

// A placement with its cost (StepSimulator::cost()).
struct FoundPlacement {
  Placement placement;
  double cost = 0;
  int64_t simulations = 0;  // that the search has made
};

// Says whether a search must end early, for example after a signal. The searches call it before every 64th
// simulation. It may be empty.
using StopSearch = std::function<bool()>;

// Returns the best of all placements. Returns nothing if there are more than `most` of them, or if `stop` has
// returned true.
std::optional<FoundPlacement> search_all(const StepSimulator& simulator, int64_t most,
                                         const StopSearch& stop = {});

// Settings of anneal().
struct AnnealingOptions {
  uint64_t seed = 0;
  int64_t moves = 8000;       // in all descents together
  double first_share = 0.1;   // the first temperature of a descent, as a share of the lowest cost so far
  double last_share = 0.001;  // the last one; between the two, the temperature falls geometrically
};

// Searches by simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983). The temperature falls
// several times. The first descent begins with the best of the balanced placement and those on one device,
// and each further descent with a random placement. A move gives one group or consecutive groups another
// device, or exchanges the devices of two groups. A move that raises the cost by Δ is taken with the
// probability exp(−Δ / temperature). Returns the best placement on the way. The result depends on the
// arguments only, unless `stop` returns true and ends the search. Errors: ConfigError for less than one move,
// or for temperatures that are not above 0.
FoundPlacement anneal(const StepSimulator& simulator, const AnnealingOptions& options,
                      const StopSearch& stop = {});

// Returns the placement of the cut that a pipeline has without a plan: balance_stages() (plan/balance.h) on
// the times of the groups in topological order, stage s on device s. It ignores speeds, links and memories.
// If there are fewer groups than devices, the last devices have none.
Placement balanced_placement(const StepSimulator& simulator);

// Returns the placement of all groups on one device.
Placement on_one_device(const StepSimulator& simulator, int device);

}  // namespace starling
