#include "starling/run/run_started.h"

namespace starling {

RunStarted run_started(const RunSpec& spec, const Source& data, const TrainLength& length,
                       const Choices& choices, const RunEnvironment& environment, int64_t parameters) {
  RunStarted event;
  event.run_dir = environment.kept.folder;
  event.model = spec.model.name;
  // A user's own program brings its data, and data.source does not apply.
  event.data = spec.model.name == kUserModel ? data.info().name : spec.data.source;
  event.ranks = environment.group.size();
  event.threads = spec.train.threads;
  event.local_processes = environment.local_cores.processes;
  event.local_cores = environment.local_cores.cores;
  event.global_batch = spec.train.global_batch;
  event.total_steps = length.total_steps;
  event.first_step = length.first_step;
  event.params = parameters;
  event.choices = choices;
  for (int r = 0; r < environment.group.size(); ++r) event.hosts.push_back(environment.group.host_of(r));
  return event;
}

}  // namespace starling
