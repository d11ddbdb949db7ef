// Store: the small key-value service through which the ranks of a job find each other (rendezvous).
//
// The launcher, or its agent on each host, serves the store. Under torchrun, mpiexec and srun, ranks serve it
// (run/ranks/job_store.h). Every rank is a client. Keys have at most 512 bytes, and values have at most 64
// KiB.
//
// On a Unix socket the store also passes file descriptors (SCM_RIGHTS). The shared-memory windows of a host
// reach its ranks in this way, so they leave nothing behind in /dev/shm. The server keeps a descriptor until
// all its readers have it, until it is erased, or until the server stops.
//
// Every connection begins with the mutual handshake of net/security/handshake.h. From a peer that has not
// proved the job key, only its greeting and proof are read, 4 KiB at most.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/unique_fd.h"

namespace starling {

using Milliseconds = std::chrono::milliseconds;

// Store is the interface of the service. It is thread-safe. Errors: CommError if the server is gone or
// refuses the request; TimeoutError if a wait ends.
class Store {
 public:
  virtual ~Store() = default;
  // Sets `key`, replacing an existing value.
  virtual void put(const std::string& key, const std::string& value) = 0;
  // Sets `key` unless it has a value, and returns the value that it then has. The server does both in one
  // step. If several ranks call it, one of them sets the value, and all get that value.
  virtual std::string put_if_absent(const std::string& key, const std::string& value) = 0;
  // Returns the value of `key`. It waits until a rank has put it.
  virtual std::string get(const std::string& key, Milliseconds timeout) = 0;
  // Returns the value of `key`, or nothing if it is absent now.
  virtual std::optional<std::string> try_get(const std::string& key) = 0;
  // Returns the values of the `count` keys `prefix`0, `prefix`1, …. It waits until each has been put. It asks
  // the server once for every 64 KiB of values. Errors: TimeoutError whose peer() is the number of the first
  // key that is absent.
  virtual std::vector<std::string> gather(const std::string& prefix, int count, Milliseconds timeout) = 0;
  // Returns the keys that begin with `prefix` now, and their values. It asks the server once for every 64
  // KiB, so a long list is not a snapshot.
  virtual std::map<std::string, std::string> list(const std::string& prefix) = 0;
  // Adds `delta` to the decimal number under `key` (0 if absent) and returns the sum. Errors: CommError also
  // if the value is not a number, or if the sum does not fit.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  // Gives the server a duplicate of `fd` under `key`. After `readers` calls of get_fd() the server closes its
  // duplicate. If `readers` is 0, the server keeps the duplicate. The call works over a Unix socket or in
  // memory only.
  virtual void put_fd(const std::string& key, int fd, int readers) = 0;
  // Returns a duplicate of the descriptor under `key`. It waits until a rank has put it.
  virtual UniqueFd get_fd(const std::string& key, Milliseconds timeout) = 0;
  // Removes every value and every descriptor whose key begins with `prefix`.
  virtual void erase(const std::string& prefix) = 0;
  // Returns where the store is served, for messages: "10.0.0.1:29501".
  virtual std::string address() const = 0;
};

}  // namespace starling
