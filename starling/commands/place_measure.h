// Measures placements of a chain as real stages of a pipeline, and the links between ranks.
#pragma once

#include <vector>

#include "starling/commands/place_profile.h"
#include "starling/place/simulate.h"
#include "starling/run/run_environment.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Measures the link between rank 0 and rank 1: half of a round trip of a small message, and the rate of a
// message of 1 MB. The minima of several trips count. The trips end after about 2 s. Collective; all ranks
// get the result. The group has at least two ranks.
DeviceLink measure_link(Group& group, const Clock& clock);

// Returns a time that no measured step of the placement goes below, in seconds: the passes of the device that
// computes longest, as far as they are emulated. 0 if all devices have the speed of a rank.
double paced_seconds(const StepSimulator& simulator, const Placement& placement);

// Measures steps of placements that are contiguous stages (stages_of() in place/best_chain.h), with the
// schedule gpipe. Rank s executes stage s. A device whose speed is below 1 is emulated: each pass takes at
// least the profiled time of its stage divided by the speed. The placements take turns, `rounds` times after
// one step without a clock. The learning rate is 0, so the parameters stay as they are. Returns the median
// step of each, in seconds, on every rank, or nothing after a signal. Collective. Errors: those of Pipeline.
std::vector<double> measure_placements(const StepSimulator& simulator,
                                       const std::vector<Placement>& placements, const PlacedModel& model,
                                       const RunSpec& spec, const RunEnvironment& environment, int rounds);

}  // namespace starling
