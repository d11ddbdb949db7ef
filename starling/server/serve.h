// serve_shard is the process of one server shard. It meets the workers, answers them until each has said
// goodbye or is lost, and returns a report.
//
//   announce_server(store, rendezvous, shard);  // as early as possible: workers wait for it
//   ServeReport report = serve_shard(store, rendezvous, shard, options, DataType::kFp32);
//
// Threads: each worker has a thread that blocks in recv. One mutex guards the table, so requests are executed
// one after another.
//
// The first worker's hello gives the shape of the shard, and every other hello must give an equal one. The
// server therefore needs no model. A worker that is lost or sends an invalid message is retired. The
// remaining workers continue.
#pragma once

#include <string>
#include <vector>

#include "starling/comm/types.h"
#include "starling/server/server_options.h"
#include "starling/server/server_rendezvous.h"
#include "starling/server/server_table_stats.h"

namespace starling {

// A worker that the server lost, and the error that ended its conversation.
struct LostWorker {
  int worker = -1;
  std::string reason;
};

// What a server shard reports at its end.
struct ServeReport {
  ServerTableStats stats;
  std::vector<ServerTableEvent> events;  // with options.record_events
  std::vector<LostWorker> lost;          // in the order of their loss
  uint64_t bytes_sent = 0;               // heads and bodies
  uint64_t bytes_received = 0;           // heads and bodies
};

// Serves until no worker is left. Blocks. Also announces the server. type: kFp32 or kFp64, the type of
// parameters, gradients and states.
//
// Errors: ConfigError for invalid options; CommError if the store is gone.
ServeReport serve_shard(Store& store, const ServerRendezvous& rendezvous, int shard,
                        const ServerOptions& options, DataType type);

}  // namespace starling
