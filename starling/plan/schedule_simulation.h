// What a schedule would take: its table played through with given durations. Planned timelines and bubbles.
#pragma once

#include <vector>

#include "starling/plan/pipeline_schedule.h"

namespace starling {

// In any unit of time. forward and backward: by stage; a single value stands for all stages.
struct ScheduleCosts {
  std::vector<double> forward = {1};
  std::vector<double> backward = {2};
  double message = 0;  // from the end of a send to the end of its recv; the sender does not wait
};

struct TimedAction {
  int rank = 0;
  Action action;
  double begin = 0;  // of a recv: when the rank comes to it, waiting included
  double end = 0;
};

struct SimulatedStep {
  std::vector<TimedAction> timeline;  // by rank, in the table's order
  double makespan = 0;
  // 1 − Σ (forwards and backwards of all ranks) / (ranks · makespan)
  double bubble = 0;
};

// The schedule must have passed check_schedule.
SimulatedStep simulate_schedule(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace starling
