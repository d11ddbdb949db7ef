// RunRecord: what a run told of itself, read back from its JSON lines (telemetry/to_json.h), for tables and pictures.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "starling/report/timeline.h"
#include "starling/telemetry/event.h"

namespace starling {

// The run after a step. Seconds are those of its steps: evaluations, checkpoints and the start do not count. Bytes are of all
// ranks and servers, in steps, and shared out over the steps evenly.
struct RunPoint {
  int64_t step = 0;
  double seconds = 0;
  double samples = 0;
  double bytes = 0;
  double loss = 0;
  double accuracy = -1;  // evaluations only; share of 1, -1 where it has no meaning
};

class RunRecord {
 public:
  std::string name;
  std::string command;                   // that repeats it
  std::string error;                     // not empty: it failed, and this is why
  std::optional<StepTimeline> timeline;  // pipelines

  RunStarted started;
  std::vector<RunPoint> steps;  // losses of the training batches
  std::vector<RunPoint> evaluations;
  RunResult result;
  bool finished = false;  // the result has come

  // Takes in one line; lines that are no event are ignored. An "error" event fills `error`.
  void add_line(const std::string& line);
  // A number of result.strategy.
  double told(const std::string& key, double otherwise) const;
  double step_seconds() const { return steps.empty() ? 0 : steps.back().seconds; }

 private:
  void finish();
};

// What a run is to reach. Accuracy: of an evaluation, a share of 1. Loss: the mean training loss of 20 steps.
struct Target {
  double accuracy = -1;
  double loss = -1;
  bool any() const { return accuracy >= 0 || loss >= 0; }
};

// The first point at which the target is reached; nothing where it never was.
std::optional<RunPoint> reached(const RunRecord& run, const Target& target);

// At most `count` points, each the mean loss of as many neighbouring steps, placed at the last of them.
std::vector<RunPoint> thinned(const std::vector<RunPoint>& points, size_t count);

}  // namespace starling
