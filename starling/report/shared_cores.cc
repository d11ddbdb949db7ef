#include "starling/report/shared_cores.h"

#include <fmt/format.h>

namespace starling {
namespace {

std::string counted(int64_t count, const char* one, const char* several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

}  // namespace

std::vector<SharedCores> runs_that_share_cores(const Comparison& comparison) {
  std::vector<SharedCores> out;
  for (size_t i = 0; i < comparison.runs.size(); ++i) {
    const RunStarted& started = comparison.runs[i].started;
    if (started.local_cores > 0 && started.local_processes * started.threads > started.local_cores)
      out.push_back({i, started.local_processes, started.threads, started.local_cores});
  }
  return out;
}

std::string shared_cores_warning(const Comparison& comparison) {
  const std::vector<SharedCores> sharing = runs_that_share_cores(comparison);
  if (sharing.empty()) return "";
  const std::vector<std::string> names = names_of(comparison);
  std::string runs;
  for (const SharedCores& run : sharing) {
    runs += (runs.empty() ? "" : "; ") +
            fmt::format("{} ({}{})", names[run.run], counted(run.processes, "process", "processes"),
                        run.threads == 1 ? "" : " of " + counted(run.threads, "thread", "threads"));
  }
  return fmt::format(
      "Ranks share cores. The host has {}, and these runs have more threads than that: {}. Their times, "
      "samples/s and speed-ups do not show what ranks with a core each reach. Sharing cores changes neither "
      "bytes nor the losses of synchronous runs.",
      counted(sharing.front().cores, "core", "cores"), runs);
}

}  // namespace starling
