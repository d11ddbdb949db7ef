#include "starling/server/row_options.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {

void check_row_options(const RowTableOptions& options) {
  if (options.width < 1 || options.width > kMaxRowWidth)
    throw ConfigError("rows", fmt::format("a width of {}; allowed are 1 … {}", options.width, kMaxRowWidth));
  if (options.workers < 1)
    throw ConfigError("rows", fmt::format("{} workers; there must be at least 1", options.workers));
  if (options.staleness && *options.staleness < 0)
    throw ConfigError("rows",
                      fmt::format("a staleness of {}; allowed are 0 and more, or none", *options.staleness));
}

void check_row_options(const RowTableOptions& options, int workers_of_job) {
  check_row_options(options);
  if (options.workers == workers_of_job) return;
  throw ConfigError(
      "rows", fmt::format("{} workers in the options, but {} in the job", options.workers, workers_of_job));
}

}  // namespace starling
