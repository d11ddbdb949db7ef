#include "starling/server/server_stats.h"

#include <fmt/format.h>

#include <algorithm>

namespace starling {

std::map<std::string, double> server_stats(const std::vector<ServerTableStats>& shards) {
  std::map<std::string, double> out = {{"max_staleness", 0}, {"late_dropped", 0}, {"retired_workers", 0}};
  for (size_t s = 0; s < shards.size(); ++s) {
    const ServerTableStats& stats = shards[s];
    const auto raise = [&](const char* name, double value) { out[name] = std::max(out[name], value); };
    raise("max_staleness", static_cast<double>(stats.max_staleness));
    raise("retired_workers", static_cast<double>(stats.retired));
    out["late_dropped"] += static_cast<double>(stats.late_dropped);
    out[fmt::format("requests_{}", s)] = static_cast<double>(stats.requests());
    out[fmt::format("updates_{}", s)] = static_cast<double>(stats.updates);
    for (const auto& [bin, count] : stats.staleness)
      out[fmt::format("staleness_{}", bin)] += static_cast<double>(count);
    for (size_t w = 0; w < stats.pushes.size(); ++w)
      out[fmt::format("pushes_{}_{}", w, s)] = static_cast<double>(stats.pushes[w]);
  }
  return out;
}

}  // namespace starling
