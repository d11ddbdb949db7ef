// RunRecord: what one run reported, read back from its JSON lines (telemetry/to_json.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "starling/report/timeline.h"
#include "starling/telemetry/event.h"

namespace starling {

// The state of a run after one step.
struct RunPoint {
  int64_t step = 0;
  double seconds = 0;  // of steps only: start-up, evaluations and checkpoints are left out
  double samples = 0;
  // Sent in steps by all ranks and servers. The run's total is divided evenly among its steps.
  double bytes = 0;
  double loss = 0;
  double accuracy = -1;  // between 0 and 1; -1 if the point is no evaluation or the task has no accuracy
};

// One run.
class RunRecord {
 public:
  std::string name;                      // the run's flags, as --runs gives them
  std::string command;                   // repeats the run
  std::string error;                     // why the run failed; empty if it did not
  std::optional<StepTimeline> timeline;  // of pipelines only

  RunStarted started;
  std::vector<RunPoint> steps;  // losses of the training batches
  std::vector<RunPoint> evaluations;
  RunResult result;
  bool finished = false;  // the run has reported its result

  // Adds one line. A line that is no event is ignored. An "error" event sets `error`.
  void add_line(const std::string& line);
  // Returns the number `key` of the strategy statistics, or `otherwise` if the run did not report it.
  double statistic(const std::string& key, double otherwise) const;
  // Returns the number of ranks with which the run started, or 0 if the run failed before that.
  int64_t ranks() const;
  // Returns the seconds of all steps.
  double step_seconds() const { return steps.empty() ? 0 : steps.back().seconds; }

 private:
  void add_event(const std::string& event, const nlohmann::json& json);
  void finish();
};

// The goal of a run. At most one of the two is set.
struct Target {
  double accuracy = -1;  // of an evaluation, between 0 and 1; -1: not set
  double loss = -1;      // mean training loss of 20 steps; -1: not set
  bool any() const { return accuracy >= 0 || loss >= 0; }
};

// Returns the first point at which the run reaches the target, or nothing if it never does.
std::optional<RunPoint> reached(const RunRecord& run, const Target& target);

}  // namespace starling
