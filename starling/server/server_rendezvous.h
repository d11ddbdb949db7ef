// ServerRendezvous describes how workers and server shards find each other. Each pair of a worker and a
// server has a Group of its own. A Group ends when one of its ranks dies, so the death of a worker ends only
// its own groups, and the remaining workers continue.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "starling/comm/bootstrap.h"
#include "starling/net/store/store.h"
#include "starling/server/protocol.h"

namespace starling {

// The settings of a rendezvous. They are equal on all workers and servers of a job.
struct ServerRendezvous {
  int workers = 1;  // ranks 0 … workers - 1 of the job
  int servers = 1;  // the ranks after the workers, unless `embedded`
  std::string name = "servers";
  int64_t generation = 0;
  GroupOptions group;  // timeout: how long a worker waits for an answer
  // How long a worker waits for the announcement of a server. A server waits longer for a worker
  // (idle_timeout), because a worker may take longer to start.
  std::chrono::milliseconds server_timeout{5'000};
  // How long a server waits for a worker to arrive, and for the next request of a worker whose process lives.
  std::chrono::milliseconds idle_timeout{600'000};
  // host_id, host_name and connect are those of GroupSetup.
  std::string host_id;
  std::string host_name;
  Connector connect;
  // Makes the group of a worker and a server. Empty: make_group of the store.
  std::function<std::unique_ptr<Group>(const GroupSetup& setup)> make;
  // Whether server s is in the process of worker s (row_host.h), instead of a process after the workers.
  bool embedded = false;
  // Ends the waits for the announcement of the other end with a CommError.
  std::stop_token stop;

  // Returns the rank of a server in the job.
  int rank_of_server(int server) const { return embedded ? server : workers + server; }
};

// Link is one end of the connection between a worker and a server. At most one thread sends and one thread
// receives at a time.
class Link {
 public:
  // peer: the rank of the other end in `group`. peer_name: its name in errors.
  Link(std::unique_ptr<Group> group, int peer, std::string peer_name);

  // Sends the head, with the number of the body's bytes filled in, and the body unless it is empty.
  void send(const ServerMessage& message, std::span<const std::byte> body = {});
  // Receives a head. Blocks. Errors: CommError for bytes that are no head; those of the group.
  ServerMessage recv_head();
  // Receives a body of exactly body.size() bytes. Blocks.
  void recv_body(std::span<std::byte> body);
  // Aborts the group. The other end's operations fail with `reason`, except over MPI (Group::abort).
  void abort(const std::string& reason) { group_->abort(reason); }

  // Returns the name of the other end.
  const std::string& peer() const { return peer_name_; }
  // Returns the traffic of the group.
  TrafficCount traffic() const { return group_->traffic(); }
  // Returns the bytes of all heads and bodies sent.
  uint64_t sent() const { return sent_; }
  // Returns the bytes of all heads and bodies received.
  uint64_t received() const { return received_; }

 private:
  std::unique_ptr<Group> group_;
  int peer_;
  std::string peer_name_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

// Tells the workers that a server exists. A server calls this before it meets workers.
void announce_server(Store& store, const ServerRendezvous& rendezvous, int server);
// Connects a worker to a server. Blocks. Errors: CommError if the store says that the other process is lost;
// TimeoutError if it does not arrive in time.
std::unique_ptr<Link> meet_server(Store& store, const ServerRendezvous& rendezvous, int worker, int server);
// Connects a server to a worker. Blocks. Errors: as meet_server().
std::unique_ptr<Link> meet_worker(Store& store, const ServerRendezvous& rendezvous, int server, int worker);

// Returns the bytes of `values`.
template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
// Returns the bytes of `values`, to be written.
template <typename T>
std::span<std::byte> writable_bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

}  // namespace starling
