// Meeting: how workers and server shards find each other. Each worker and each server have a Group of their own, of the two,
// so that the end of a worker is the end of its groups only and the others go on (a Group does not outlive its ranks).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "starling/comm/bootstrap.h"
#include "starling/net/store.h"
#include "starling/server/protocol.h"

namespace starling {

// The same on all workers and servers of a job.
struct Meeting {
  int workers = 1;  // ranks 0 … workers - 1 of the job
  int servers = 1;  // the ranks behind them
  std::string name = "servers";
  int64_t generation = 0;
  GroupOptions group;  // timeout: how long a worker waits for an answer
  // A server that has not announced itself after this long is not there. (A worker's start is not bounded by it.)
  std::chrono::milliseconds server_timeout{5'000};
  // How long a server waits for the next request of a worker that lives.
  std::chrono::milliseconds idle_timeout{600'000};
  // As in GroupSetup.
  std::string host_id;
  std::string host_name;
  Connector connect;
  // How a worker and a server make their group; null: make_group of the store.
  std::function<std::unique_ptr<Group>(const GroupSetup& setup)> make;

  int rank_of_server(int server) const { return workers + server; }
};

// A worker's or a server's end. One thread at a time sends, one receives.
class Link {
 public:
  Link(std::unique_ptr<Group> group, int peer, std::string peer_name);

  // Sends the head, with the body's bytes filled in, and the body if there is one.
  void send(const ServerMessage& message, std::span<const std::byte> body = {});
  ServerMessage recv_head();
  void recv_body(std::span<std::byte> body);
  void abort(const std::string& reason) { group_->abort(reason); }

  const std::string& peer() const { return peer_name_; }
  TrafficCount traffic() const { return group_->traffic(); }
  // Heads and bodies.
  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }

 private:
  std::unique_ptr<Group> group_;
  int peer_;
  std::string peer_name_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

// To be called by a server before it meets workers: it is there.
void announce_server(Store& store, const Meeting& meeting, int server);
// Errors: CommError where the other is lost (the launcher's word in the store), TimeoutError where it does not come.
std::unique_ptr<Link> meet_server(Store& store, const Meeting& meeting, int worker, int server);
std::unique_ptr<Link> meet_worker(Store& store, const Meeting& meeting, int server, int worker);

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <typename T>
std::span<std::byte> writable_bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

}  // namespace starling
