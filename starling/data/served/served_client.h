// ServedClient connects a rank to a data server (served_server.h). Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "starling/data/served/served_protocol.h"
#include "starling/net/endpoint.h"
#include "starling/net/security/job_key.h"

namespace starling {

// Time limits of a client.
struct ServedClientOptions {
  std::chrono::milliseconds connect{3'000};  // how long to try again while the server does not listen (yet)
  // how long to wait for an answer before the server counts as dead
  std::chrono::milliseconds answer{60'000};
};

// Reads records and labels from a data server. Thread-safe: several threads may read at once. Each read uses
// a connection of its own, which is opened on demand and kept. If a kept connection has broken, the client
// repeats the read once on a new connection, so a server may be restarted between reads. Errors: CommError
// that names the server if it is not reachable, refuses the key or dies; TimeoutError if it does not answer;
// DataError with the server's reason if it cannot serve the request.
class ServedClient {
 public:
  // Connects to `address` ("host:port") at once.
  ServedClient(std::string address, JobIdentity identity, ServedClientOptions options = {});

  // What the server serves.
  const ServedDescription& description() const { return description_; }
  // The address of the server, "host:port".
  const std::string& address() const { return address_; }
  // Returns the class of every sample of a part of images. Each is less than the part's number of classes.
  std::vector<uint32_t> labels(uint32_t part) const;
  // Reads records one after another into `out`, which holds indices.size() * record_bytes() bytes of the
  // part.
  void read(uint32_t part, std::span<const int64_t> indices, uint8_t* out) const;

 private:
  std::unique_ptr<Endpoint> take(bool fresh, bool& reused) const;
  void converse(const std::function<void(Endpoint&)>& talk) const;

  const std::string address_;
  const JobIdentity identity_;
  const ServedClientOptions options_;
  ServedDescription description_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Endpoint>> idle_;
};

// TicketStream takes tickets of a job for one worker (served_leases.h), over a connection of its own. When
// the connection ends, the server gives the worker's tickets to other workers. Thread-safe: one request runs
// at a time. Errors: those of ServedClient, but no request is repeated.
class TicketStream {
 public:
  // Joins a job. `job` is equal on all workers of the job, and `first` is the job's first ticket.
  TicketStream(const std::string& address, const JobIdentity& identity, uint64_t job, int64_t first,
               ServedClientOptions options = {});

  // Returns the next ticket.
  int64_t next();
  // Reports that the ticket's batch has been used for training. Returns false if this took too long and
  // another worker has the ticket.
  bool settle(int64_t ticket);
  // The address of the server, "host:port".
  const std::string& address() const { return address_; }

 private:
  const std::string address_;
  const ServedClientOptions options_;
  std::mutex mutex_;
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace starling
