// StoreClient: a process's access to the StoreServer of its job. Thread-safe; calls of several threads go on at the same
// time, each over a connection of its own, opened when needed and kept. A get() that waits holds up nobody.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "starling/net/job_key.h"
#include "starling/net/store.h"
#include "starling/net/store_connection.h"
#include "starling/net/store_protocol.h"

namespace starling {

struct StoreClientOptions {
  Milliseconds connect_timeout{30'000};  // a server that does not listen yet is tried again until then
  Milliseconds answer_timeout{
      10'000};  // beyond the wait that a call asked for: then the server is taken for dead
};

class StoreClient final : public Store {
 public:
  // "host:port", "/path" or "@name". Connects at once. CommError "wrong job key …", TimeoutError if nobody listens there
  // until the end of connect_timeout.
  StoreClient(const std::string& address, const JobIdentity& identity, StoreClientOptions options = {});
  ~StoreClient() override;

  void put(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Milliseconds timeout) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  // CommError over TCP.
  void put_fd(const std::string& key, int fd) override;
  UniqueFd get_fd(const std::string& key, Milliseconds timeout) override;

  // From now on the end of this process without goodbye() makes the server put lost_key(rank). The announcement has a
  // connection of its own, which nothing else uses.
  void announce(int rank);
  // Withdraws it: this rank ends in order.
  void goodbye();
  // Wakes every call of this client, now and later, with a CommError. From any thread.
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

  std::mutex mutex_;
  bool stopped_ = false;
  std::vector<Connection> idle_;
  std::vector<Connection> busy_;  // also the announcing one
  Connection announcing_;
};

}  // namespace starling
