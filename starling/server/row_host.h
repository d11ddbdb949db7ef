// RowHost holds a row table whose shards are in the workers' processes: every rank is a worker and has a
// shard, as in LightLDA and Petuum. No process is a server only.
//
//   RowHost host(store, rendezvous, group.rank(), options);   // collective; starts threads
//   host.rows().push(…); …
//   host.finish();                                            // collective
//
// The threads of the host answer the messages of serve_rows() (row_serve.h) over the same connections: a Link
// for each pair of a worker and a server. So there is one wire protocol and one conversation, and a worker
// that dies ends only its own connections. Messages over the job's group would need a second way to meet and
// to time out. The price is a window of 2 MB and a thread for each ordered pair of ranks of a host. The own
// shard is called directly and costs no bytes.
#pragma once

#include <memory>

#include "starling/server/row_client.h"
#include "starling/server/row_options.h"
#include "starling/server/row_serve.h"
#include "starling/server/server_rendezvous.h"

namespace starling {

// T: int32_t, int64_t, float or double.
template <typename T>
class BasicRowHost {
 public:
  // Starts the shard of this rank and connects to the shards of all ranks. Blocks. The rendezvous is that of
  // the job. Its `servers` does not count: there are as many shards as workers. Tables of a job need
  // different names (ServerRendezvous::name). The store must outlive the host. Errors: as BasicRowClient;
  // ConfigError if the rank is no worker of the job.
  BasicRowHost(Store& store, const ServerRendezvous& rendezvous, int rank, const RowTableOptions& options);
  // Without finish(), it ends the connections, and the other ranks get a CommError.
  ~BasicRowHost();

  // Returns this rank's access to the table.
  BasicRowClient<T>& rows();
  // Says goodbye to all shards, waits until all workers have said goodbye to this one, and returns its
  // report. Errors: CommError that names the first lost worker, such as one that has sent no request for
  // ServerRendezvous::idle_timeout; those of BasicRowClient::goodbye().
  RowServeReport finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};
// The host of a table of counts.
using RowHost = BasicRowHost<int32_t>;

}  // namespace starling
