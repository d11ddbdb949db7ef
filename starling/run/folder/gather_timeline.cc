#include "starling/run/folder/gather_timeline.h"

#include <vector>

namespace starling {

StepTimeline gather_timeline(Traced& traced) {
  const std::vector<MeasuredAction> measured = traced.gather_timeline();
  const Schedule& schedule = traced.schedule();
  StepTimeline timeline{schedule.name, schedule.ranks, schedule.chunks, schedule.micro_batches, {}};
  for (const MeasuredAction& a : measured)
    timeline.actions.push_back(
        {a.rank, a.action, static_cast<double>(a.begin_ns) * 1e-9, static_cast<double>(a.end_ns) * 1e-9});
  return timeline;
}

}  // namespace starling
