// ServedClient: a rank's access to a data server (served_server.h). Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "starling/data/served_protocol.h"
#include "starling/net/endpoint.h"
#include "starling/net/job_key.h"

namespace starling {

struct ServedClientOptions {
  std::chrono::milliseconds connect{3'000};  // a server that does not listen (yet) is tried again until then
  std::chrono::milliseconds answer{60'000};  // then the server is taken for dead
};

// Thread-safe: reads of several threads go on at the same time, each over a connection of its own, opened when needed and kept.
// A read whose connection breaks is tried once more on a new one, so that a server may be restarted. Errors: CommError naming the
// server when it is not there, refuses the key or dies; TimeoutError when it does not answer; DataError with its reason where it
// cannot give what was asked for.
class ServedClient {
 public:
  // address: "host:port". Connects at once.
  ServedClient(std::string address, JobIdentity identity, ServedClientOptions options = {});

  const ServedDescription& description() const { return description_; }
  const std::string& address() const { return address_; }
  // The class of every sample of a part, each below its number of classes.
  std::vector<uint32_t> labels(uint32_t part) const;
  // Reads images one after the other into `out`, of indices.size() * shape.bytes() bytes.
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

// A worker's part in the tickets of a job (served_leases.h), over a connection of its own: when it ends, what the worker holds goes
// to the others. Thread-safe, one conversation at a time. Errors as above; nothing is tried again.
class TicketStream {
 public:
  // job: the same on all its workers. first: the ticket that the job begins with.
  TicketStream(const std::string& address, const JobIdentity& identity, uint64_t job, int64_t first,
               ServedClientOptions options = {});

  int64_t next();
  // The batch of the ticket has been trained on. False: it took too long, and another worker has it.
  bool settle(int64_t ticket);
  const std::string& address() const { return address_; }

 private:
  const std::string address_;
  const ServedClientOptions options_;
  std::mutex mutex_;
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace starling
