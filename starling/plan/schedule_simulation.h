// Simulates a schedule with given durations: its timeline and its bubble.
#pragma once

#include <vector>

#include "starling/plan/pipeline_schedule.h"

namespace starling {

// Durations in any unit of time. forward and backward are by stage; a single value stands for all stages.
struct ScheduleCosts {
  std::vector<double> forward = {1};
  std::vector<double> backward = {2};
  double message = 0;  // from the end of a send to the end of its receive; the sender does not wait
};

// An action with its simulated begin and end.
struct TimedAction {
  int rank = 0;
  Action action;
  double begin = 0;  // of a receive: when the rank reaches it, so the wait is included
  double end = 0;
};

// The result of a simulation.
struct SimulatedStep {
  std::vector<TimedAction> timeline;  // by rank, in the order of the schedule
  double makespan = 0;
  // 1 − Σ (forwards and backwards of all ranks) / (ranks · makespan)
  double bubble = 0;
};

// Simulates one step. The schedule must have passed check_schedule().
SimulatedStep simulate_schedule(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace starling
