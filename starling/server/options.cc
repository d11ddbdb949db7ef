#include "starling/server/options.h"

#include <fmt/format.h>

#include <cmath>

#include "starling/base/error.h"

namespace starling {

void check_server_options(const ServerOptions& o) {
  if (o.workers < 1) throw ConfigError("--exchange parameter-server", "needs at least one worker (-n)");
  if (o.staleness && *o.staleness < 0) {
    throw ConfigError("--staleness",
                      fmt::format("{} is no staleness; 0 is synchronous, inf asynchronous", *o.staleness));
  }
  if (o.backup < 0 || o.backup >= o.workers) {
    throw ConfigError(
        "--backup", fmt::format("{} backup workers of {}: give 0 to {}", o.backup, o.workers, o.workers - 1));
  }
  if (o.backup > 0 && !o.synchronous())
    throw ConfigError("--backup", "backup workers have a meaning at --staleness 0 only");
  if (o.synchronous() && (!o.lambda.empty() || o.weight_by_staleness)) {
    throw ConfigError("server.lambda",
                      "the weights of workers and of staleness are for --staleness s and inf; at 0 the "
                      "gradients of a clock are averaged");
  }
  if (!o.lambda.empty() && o.lambda.size() != static_cast<size_t>(o.workers)) {
    throw ConfigError("server.lambda", fmt::format("{} weights for {} workers; give one a worker",
                                                   o.lambda.size(), o.workers));
  }
  for (const double l : o.lambda) {
    if (!(l > 0) || !std::isfinite(l))
      throw ConfigError("server.lambda", fmt::format("{} is no weight; give numbers above 0", l));
  }
}

}  // namespace starling
