#include "starling/run/timeline_file.h"

#include "starling/report/timeline.h"

namespace starling {

void write_timeline_file(Traced& traced, const std::string& file) {
  const std::vector<MeasuredAction> measured = traced.gather_timeline();
  if (file.empty()) return;
  const Schedule& schedule = traced.schedule();
  StepTimeline timeline{schedule.name, schedule.ranks, schedule.chunks, schedule.micro_batches, {}};
  for (const MeasuredAction& a : measured)
    timeline.actions.push_back(
        {a.rank, a.action, static_cast<double>(a.begin_ns) * 1e-9, static_cast<double>(a.end_ns) * 1e-9});
  write_timeline(file, timeline);
}

}  // namespace starling
