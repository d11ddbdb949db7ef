// StoreClient: access to the StoreServer of the job.
//
// Calls of several threads run at the same time, each over a connection of its own. Connections are opened
// when needed and kept. A get() that waits delays no other call.
//
// A server that ended, or whose host does not answer, is gone for good, because it has lost its contents.
// After a call has found this, every later call throws the CommError at once.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "starling/net/security/handshake.h"
#include "starling/net/store/store.h"
#include "starling/net/store/store_connection.h"
#include "starling/net/store/store_protocol.h"

namespace starling {

// StoreClientOptions holds the limits of a client's waits.
struct StoreClientOptions {
  Milliseconds connect_timeout{30'000};  // for a server that may start later
  // How long the server may take beyond the wait that a call asked for. After this time the call throws
  // TimeoutError.
  Milliseconds answer_timeout{10'000};
};

// StoreClient is one process's client. It is thread-safe. Store states the contract of the calls.
class StoreClient final : public Store {
 public:
  // Connects to "host:port", "/path" or "@name". Errors: ConfigError if the address or the job id is
  // malformed; CommError if the job key is wrong; TimeoutError if no server listens there within
  // connect_timeout.
  StoreClient(const std::string& address, const JobIdentity& identity, StoreClientOptions options = {});
  ~StoreClient() override;

  void put(const std::string& key, const std::string& value) override;
  std::string put_if_absent(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Milliseconds timeout) override;
  std::optional<std::string> try_get(const std::string& key) override;
  std::vector<std::string> gather(const std::string& prefix, int count, Milliseconds timeout) override;
  std::map<std::string, std::string> list(const std::string& prefix) override;
  int64_t add(const std::string& key, int64_t delta) override;
  // Errors: CommError also if the connection is over TCP.
  void put_fd(const std::string& key, int fd, int readers) override;
  UniqueFd get_fd(const std::string& key, Milliseconds timeout) override;
  void erase(const std::string& prefix) override;
  std::string address() const override { return address_; }

  // Announces this process as `rank`. If the process then ends without goodbye(), the server puts
  // lost_key(rank). The announcement has a connection of its own, which carries nothing else.
  void announce(int rank);
  // Withdraws the announcement, because this rank ends without a fault.
  void goodbye();
  // Ends every call of this client, now and later, with a CommError. A call that is opening a connection ends
  // when the connection is open or connect_timeout is over. Any thread may call it.
  void shutdown();

 private:
  struct Answer {
    StoreStatus status;
    std::string body;
    UniqueFd fd;
  };
  using Connection = std::shared_ptr<StoreConnection>;

  Connection open();
  Connection take();
  void give_back(const Connection& connection);
  void forget(const Connection& connection);
  Answer call(const StoreRequest& request, int fd, Milliseconds wait);
  Answer converse(StoreConnection& connection, const StoreRequest& request, int fd, Milliseconds wait);
  void announce_on(StoreConnection& connection, StoreOp op, int rank);

  std::string address_;
  JobIdentity identity_;
  StoreClientOptions options_;
  std::shared_ptr<const TlsSettings> settings_;

  std::mutex mutex_;
  bool stopped_ = false;
  std::string gone_;  // why the server is gone; empty: it is not
  std::vector<Connection> idle_;
  std::vector<Connection> busy_;  // includes the announcing connection
  Connection announcing_;
};

}  // namespace starling
