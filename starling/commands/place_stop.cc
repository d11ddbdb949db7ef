#include "starling/commands/place_stop.h"

namespace starling {

bool is_stopped(const RunEnvironment& environment, bool ended) {
  int64_t stops = ended || environment.process.stop ? 1 : 0;
  if (environment.group.size() > 1)
    all_reduce(environment.group, &stops, 1, DataType::kInt64, ReduceOp::kMax);
  return stops > 0;
}

}  // namespace starling
