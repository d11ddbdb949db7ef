// Traced is the ability of a strategy to report what its ranks did in the last step.
#pragma once

#include <vector>

#include "starling/parallel/pipeline/schedule_executor.h"
#include "starling/plan/pipeline_schedule.h"

namespace starling {

// The optional ability of a strategy to report a timeline.
class Traced {
 public:
  virtual ~Traced() = default;
  // Returns the schedule that the ranks execute.
  virtual const Schedule& schedule() const = 0;
  // Returns the actions of all ranks in the last step, ordered by rank. Collective. Complete on rank 0 and
  // empty on all other ranks. On one host, times count from the earliest begin. Clocks of several hosts
  // differ, so there each rank counts from its own begin.
  virtual std::vector<MeasuredAction> gather_timeline() = 0;
};

}  // namespace starling
