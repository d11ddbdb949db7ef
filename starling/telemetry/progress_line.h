// The text of the progress line, which is shortened to fit the terminal.
#pragma once

#include <string>

#include "starling/telemetry/event.h"

namespace starling {

// What the progress line depends on besides the step.
struct ProgressScale {
  int64_t total_steps = 0;  // 0: unknown
  int64_t ranks = 1;
  bool verbose = false;  // adds the learning rate and the times of the step
  bool color = false;
};

// Returns a line of at most `columns` columns (0: no limit). An example is
// "step 128/640  20 %  loss 0.3127  4,210 samples/s  waiting 3.1 %  slowest rank 1  ETA 12 s". Fields are
// left out in this order until the line fits: times of the step, learning rate, epoch, slowest rank,
// percentage, waiting time, samples/s, ETA. Step and loss are truncated last. The waiting time is
// (exposed communication + data wait) / step time. A single rank without servers waits for data only. The
// line says so, and leaves out a share that would be 0.0 %.
std::string progress_line(const StepDone& step, const ProgressScale& scale, int columns);

}  // namespace starling
