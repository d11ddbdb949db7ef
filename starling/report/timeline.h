// StepTimeline: what each rank of a pipeline did when in one step, as measured; and the same table as planned.
#pragma once

#include <string>
#include <vector>

#include "starling/plan/schedule_simulation.h"

namespace starling {

struct StepTimeline {
  std::string schedule;  // "1f1b"
  int ranks = 1;
  int chunks = 1;
  int micro_batches = 1;
  std::vector<TimedAction>
      actions;  // measured, in seconds from the first begin; by rank, in the order of the table
};

// The table played through with each stage's mean measured times of forward and backward and no cost of messages, in seconds.
// Errors: ConfigError for actions that are no whole table.
SimulatedStep planned_step(const StepTimeline& measured);

// 1 − Σ forwards and backwards / (ranks · span): the idle share, from the first begin to the last end.
double idle_share(const StepTimeline& measured);

// RUN_DIR/timeline.json, one object. Errors: Error(kInternal) naming the file.
void write_timeline(const std::string& path, const StepTimeline& timeline);
// Errors: ConfigError naming the file where it holds none.
StepTimeline read_timeline(const std::string& path);

}  // namespace starling
