// serve_rows is the process of one server of a row table. It meets the workers, answers them until each has
// said goodbye or is lost, and returns a report.
//
//   RowServeReport report = serve_rows(store, rendezvous, shard, options, DataType::kInt32);
//
// RowServer is its conversations with some workers, for a shard that is elsewhere, too (row_host.h). Each
// worker has a thread that blocks in recv. A worker that is lost or sends an invalid message makes the table
// useless (row_table.h): every other worker then gets an error that names the lost one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/comm/types.h"
#include "starling/server/row_options.h"
#include "starling/server/row_shard.h"
#include "starling/server/serve.h"
#include "starling/server/server_rendezvous.h"

namespace starling {

// What a server of a row table reports at its end.
struct RowServeReport {
  RowTableStats stats;
  std::vector<LostWorker> lost;  // in the order of their loss
  uint64_t bytes_sent = 0;       // heads and bodies
  uint64_t bytes_received = 0;   // heads and bodies
};

// Serves until no worker is left. Blocks. Also announces the server. type: that of the elements, kInt32,
// kInt64, kFp32 or kFp64. Errors: ConfigError for invalid options; CommError if the store is gone.
RowServeReport serve_rows(Store& store, const ServerRendezvous& rendezvous, int shard,
                          const RowTableOptions& options, DataType type);

// The conversations of one shard with workers. T: int32_t, int64_t, float or double.
template <typename T>
class RowServer {
 public:
  // Announces the server and starts a thread for each of `workers`. The arguments must outlive this object.
  RowServer(Store& store, const ServerRendezvous& rendezvous, int shard_index, RowShard<T>& shard,
            const std::vector<int>& workers);
  // Calls abort() and waits for the threads.
  ~RowServer();

  // Ends all conversations. The workers get an error with `reason`.
  void abort(const std::string& reason);
  // Waits until every conversation has ended.
  RowServeReport finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace starling
