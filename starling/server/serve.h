// A server shard's process: meets the workers, answers them until each has said goodbye or is lost, and reports.
//
//   announce_server(store, meeting, shard);  // as early as possible: workers wait for it
//   ServeReport report = serve_shard(store, meeting, shard, options, DataType::kFp32);
//
// One thread a worker, which blocks in recv; the table is behind one mutex, so that requests are carried out one after
// another. The shape of the shard comes with the first worker's hello and must be equal in all: the server needs no model.
// A worker that is lost, or says what it must not, is retired, and the others go on.
#pragma once

#include <string>
#include <vector>

#include "starling/comm/types.h"
#include "starling/server/meeting.h"
#include "starling/server/options.h"
#include "starling/server/table_stats.h"

namespace starling {

struct LostWorker {
  int worker = -1;
  std::string reason;
};

struct ServeReport {
  TableStats stats;
  std::vector<TableEvent> events;  // with options.record_events
  std::vector<LostWorker> lost;    // in the order of their loss
  uint64_t bytes_sent = 0;         // heads and bodies
  uint64_t bytes_received = 0;
};

// type: kFp32 or kFp64, of parameters, gradients and states. Blocks until no worker is left. Announces the server, too.
// Errors: ConfigError for options that cannot be.
ServeReport serve_shard(Store& store, const Meeting& meeting, int shard, const ServerOptions& options,
                        DataType type);

}  // namespace starling
