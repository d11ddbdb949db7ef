// StepTimeline: when each rank of a pipeline executed each action of its schedule in one step.
#pragma once

#include <string>
#include <vector>

#include "starling/plan/schedule_simulation.h"

namespace starling {

// The timeline of one step.
struct StepTimeline {
  std::string schedule;  // "1f1b"
  int ranks = 1;
  int chunks = 1;
  int micro_batches = 1;
  // Measured, in seconds since the first action began. Ordered by rank, then as in the schedule.
  std::vector<TimedAction> actions;
};

// Simulates the step with the mean measured times of each stage's forward and backward, in seconds. Messages
// take no time. Errors: ConfigError if the actions are not a complete schedule.
SimulatedStep planned_step(const StepTimeline& measured);

// Returns the share of the step in which ranks compute nothing: 1 − Σ (forward and backward times) / (ranks ·
// duration of the step).
double idle_share(const StepTimeline& measured);

// Writes one JSON object, the file RUN_DIR/timeline.json of a run. Errors: Error(kInternal) naming the file.
void write_timeline(const std::string& path, const StepTimeline& timeline);
// Reads what write_timeline() wrote. Errors: ConfigError that names the file, if it does not hold a timeline.
StepTimeline read_timeline(const std::string& path);

}  // namespace starling
