// `starling bench scaling` compares the samples/s of K ranks with K times the samples/s of one rank. It shows
// where the time of a step goes. Every point is a run of this program, `train -n K`. Unless
// ScalingSpec::compute_ms is 0, the computation of a step is emulated by sleeping (--emulate compute=…), so
// that ranks which share cores stand for separate machines. The exchange is real.
#pragma once

#include <string>
#include <vector>

#include "starling/commands/commands.h"

namespace starling {

// One line of the table. Seconds are means over ranks and steps.
struct ScalingPoint {
  std::string series;   // "alone", "slow link", "slow link, straggler"
  std::string emulate;  // the run's --emulate value
  int64_t ranks = 1;
  int64_t global_batch = 0;
  double samples_per_s = 0;
  double speedup = 1;  // relative to one rank of the first series
  double step_s = 0;
  bool emulated = true;   // whether the computation of a step is emulated
  double compute_s = 0;   // forward and backward, as emulated, or of rank 0 if it is not
  double waiting_s = 0;   // time spent waiting for the slowest rank; part of exchange_s if not emulated
  double exchange_s = 0;  // exposed communication without the waiting time
  double overrun = 0;     // share of steps whose real computation took longer than the emulated one
  // "one rank", "linear" (at least 90 % of K), "sub-linear", or "negative" (fewer samples/s than with fewer
  // ranks).
  std::string scaling;
  // The largest part of the lost time: "exchange", "waiting for the slowest" or "other". If no part is 5 % of
  // the step, "computing".
  std::string most;
};

// Sets speedup, scaling and most of all points. The first point is one rank. The points of a series are
// adjacent and in the order of ranks.
void judge_scaling(std::vector<ScalingPoint>& points);

// Returns one line of the table.
std::string to_text(const ScalingPoint& point);
// Returns the heading of the table.
std::string scaling_heading();
// Returns one JSON object.
std::string to_json(const ScalingPoint& point);

// Runs all points and prints one line for each. Returns 0. Errors: ConfigError for numbers of ranks that do
// not rise from 1 to at most 64. If a run fails, the errors are those of last_result_of(), with the run's own
// message.
int bench_scaling(const RunSpec& spec, const ScalingSpec& scaling, const CommandOptions& options);

}  // namespace starling
