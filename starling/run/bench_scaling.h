// `starling bench scaling`: samples/s for 1 … 8 ranks against K times those of one, and where the time of a step goes. Every point is
// a run of this program, `train -n K`. Ranks that are more than the cores stand for machines of their own by sleeping: the
// computation of a step is emulated (--emulate compute=…), the exchange is real.
#pragma once

#include <string>
#include <vector>

#include "starling/run/commands.h"

namespace starling {

// One line of the table. Seconds are means over ranks and steps.
struct ScalingPoint {
  std::string series;   // "alone", "slow link", "slow link, straggler"
  std::string emulate;  // as the run had it
  int64_t ranks = 1;
  int64_t global_batch = 0;
  double samples_per_s = 0;
  double speedup = 1;  // over one rank of the first series
  double step_s = 0;
  double compute_s = 0;   // forward and backward, as emulated
  double waiting_s = 0;   // for the slowest rank
  double exchange_s = 0;  // exposed communication without waiting for the slowest
  double overrun = 0;     // share of steps whose real computation was longer than the emulated
  std::string
      scaling;  // linear (90 % of K and more), sub-linear, negative (fewer samples/s than with fewer ranks)
  std::string
      most;  // what takes most of the time that is lost: "exchange", "waiting for the slowest", "other"
};

// Fills in speedup, scaling and most. The first point is one rank; the points of a series lie together, in the order of ranks.
void judge_scaling(std::vector<ScalingPoint>& points);

std::string to_text(const ScalingPoint& point);
std::string scaling_heading();
std::string to_json(const ScalingPoint& point);

// Runs all and prints a line each. Errors: Error with the run's own words where one fails.
int bench_scaling(const RunSpec& spec, const ScalingSpec& scaling, const CommandOptions& options);

}  // namespace starling
