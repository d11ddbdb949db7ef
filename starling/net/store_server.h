// StoreServer: serves net/store.h to the processes of a job, over TCP, Unix sockets or both at once. One thread of its
// own in a poll loop; a waiting get() costs an entry in a list. The job key is proved before anything else is read.
//
// A connection that announced a rank and ends without a goodbye (kill -9, a lost host) makes the server put
// "lost/<rank>" with the reason, and "lost/first" if it is the first, so that everybody who waits for it, or asks, learns of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "starling/net/job_key.h"
#include "starling/net/pending_connections.h"

namespace starling {

struct StoreServerOptions {
  AdmissionLimits limits;
  size_t max_clients = 65'536;  // authenticated connections
  size_t max_keys = 1 << 20;    // values and descriptors
};

// The key under which the loss of a rank is recorded.
std::string lost_key(int rank);
// The rank that was lost first, in decimal: one key to wait for where any loss matters.
constexpr const char* kFirstLostKey = "lost/first";

class StoreServer {
 public:
  // Each address is "host:port" (port 0: a free one), "/path" or "@name". Serves when the constructor returns; CommError
  // where an address cannot be had (see socket.h, listen_at).
  StoreServer(const std::vector<std::string>& addresses, const JobIdentity& identity,
              StoreServerOptions options = {});
  // Closes every connection: clients that wait get a CommError.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // In the order given, with the real ports.
  const std::vector<std::string>& addresses() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace starling
