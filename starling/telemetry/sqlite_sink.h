// Writes the run store DIR/run.sqlite. Each event is a row. The columns are fields of event.h and have their
// names. RanksLost is a row of `message`:
//
//   run(id, started_at, …)    one row per start; a resumed run adds a row
//   step(run, step, …)        eval(run, step, …)     checkpoint(run, step, …)
//   message(run, at, severity, rank, text)           result(run, …)
//
// `at` is in seconds since the sink was opened, and `started_at` in seconds since 1970. `choices` and
// `peak_rss_mb` are JSON text. The journal mode is WAL, so other processes can read while the run writes.
#pragma once

#include <memory>
#include <string>

#include "starling/base/clock.h"
#include "starling/telemetry/sink.h"

namespace starling {

struct SqliteOptions {
  int events_per_transaction = 256;
  Nanoseconds transaction_age =
      std::chrono::seconds(1);  // the first event after this time commits the transaction
};

// Returns a sink that writes on the thread of its caller. Wrap it in an AsyncSink, as open_run_store() does.
// Throws ConfigError if the file cannot be opened, or is not a run store of this or an earlier version.
std::unique_ptr<EventSink> open_sqlite_sink(const std::string& path, const Clock& clock,
                                            const SqliteOptions& options = {});

// Returns a sink that writes DIR/run.sqlite on its own thread. Errors: those of open_sqlite_sink().
std::unique_ptr<EventSink> open_run_store(const std::string& run_dir, const Clock& clock);

}  // namespace starling
