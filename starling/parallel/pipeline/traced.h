// Traced is the ability of a strategy to report what its ranks did in the last step.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/plan/pipeline_schedule.h"

namespace starling {

// An action with the time that it took on this rank, in nanoseconds of the clock.
struct MeasuredAction {
  int rank = 0;
  Action action;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// The optional ability of a strategy to report a timeline.
class Traced {
 public:
  virtual ~Traced() = default;
  // Returns the schedule that the ranks execute.
  virtual const Schedule& schedule() const = 0;
  // Returns the actions of all ranks in the last step, ordered by rank. Collective. Complete on rank 0 and
  // empty on all other ranks. On one host, times count from the start of the earliest action of any rank.
  // Clocks of several hosts differ, so there each rank counts from the start of its own first action.
  virtual std::vector<MeasuredAction> gather_timeline() = 0;
};

}  // namespace starling
