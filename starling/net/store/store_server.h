// StoreServer: serves the Store of a job to its processes, over TCP, Unix sockets or both.
//
// It has one thread with a poll loop. A get() that waits costs one entry in a list. A client must prove the
// job key before anything else is read.
//
// If a connection that announced a rank ends without a goodbye (kill -9, a lost host), the server puts
// "lost/<rank>" with the reason. For the first lost rank it also puts "lost/first". A process that waits for
// these keys, or asks for them, learns of the loss.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "starling/net/security/job_key.h"
#include "starling/net/stream/pending_connections.h"

namespace starling {

// StoreServerOptions holds the limits of a server.
struct StoreServerOptions {
  AdmissionLimits limits;
  size_t max_clients = 65'536;  // authenticated connections
  size_t max_keys = 1 << 20;    // values and descriptors together
};

// The beginning of the keys of lost_key(), and of kFirstLostKey.
constexpr const char* kLostKeys = "lost/";
// Returns the key under which the server records the loss of a rank.
std::string lost_key(int rank);
// The beginning of the keys of dead_key().
constexpr const char* kDeadKeys = "dead/";
// Returns the key under which the server records that a lost rank's process is dead: the kernel of the rank's
// host has closed its connection. A rank that is lost because its host does not answer may still live.
std::string dead_key(int rank);
// The key of the rank that was lost first, in decimal. Wait for it if the loss of any rank matters.
constexpr const char* kFirstLostKey = "lost/first";

// StoreServer serves until it is destroyed.
class StoreServer {
 public:
  // Each address is "host:port" (port 0: a free one), "/path" or "@name". The server serves when the
  // constructor returns. Errors: ConfigError if an address or the job id is malformed; CommError if it cannot
  // listen at an address (listen_at in net/stream/socket.h).
  StoreServer(const std::vector<std::string>& addresses, const JobIdentity& identity,
              StoreServerOptions options = {});
  // Closes every connection. Clients that wait get a CommError.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // The addresses in the given order, with the real ports.
  const std::vector<std::string>& addresses() const;
  // The number of values and descriptors that the server holds. Any thread may call it.
  size_t keys() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace starling
