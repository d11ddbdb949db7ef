// The run store: DIR/run.sqlite. Tables, one row an event, columns named as the fields of event.h:
//   run(id, started_at, …)    one row a start; a resumed run adds one
//   step(run, step, …)        eval(run, step, …)     checkpoint(run, step, …)
//   message(run, at, severity, rank, text)           result(run, …)
// `at` is seconds since the sink was opened, `started_at` seconds since 1970. choices and peak_rss_mb are
// JSON text. Journal mode WAL: others read while the run writes.
#pragma once

#include <memory>
#include <string>

#include "starling/base/clock.h"
#include "starling/telemetry/sink.h"

namespace starling {

struct SqliteOptions {
  int events_per_transaction = 256;
  Nanoseconds transaction_age =
      std::chrono::seconds(1);  // an open transaction is committed by the next event after this
};

// Writes on the caller's thread: wrap it in an AsyncSink (open_run_store does). ConfigError if the file
// cannot be opened or is not a run store of this version.
std::unique_ptr<EventSink> open_sqlite_sink(const std::string& path, const Clock& clock,
                                            const SqliteOptions& options = {});

// DIR/run.sqlite, written by a thread of its own.
std::unique_ptr<EventSink> open_run_store(const std::string& run_dir, const Clock& clock);

}  // namespace starling
