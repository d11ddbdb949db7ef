// Store: the small key-value service through which the ranks of a job find each other (rendezvous). The
// launcher, or rank 0 under torchrun and srun, serves it; every rank holds one client connection. Values are
// at most 64 KiB.
//
// On a Unix socket the store also passes file descriptors (SCM_RIGHTS): that is how the shared-memory windows
// of one host reach its ranks, and why they leave nothing behind in /dev/shm. The server keeps a descriptor
// until it stops.
//
// Every connection begins with the mutual handshake of net/handshake.h; nothing is read from a peer that has
// not proved the job key but its 4 KiB at most greeting.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "starling/base/unique_fd.h"

namespace starling {

using Milliseconds = std::chrono::milliseconds;

// Thread-safe. Errors: CommError when the server is gone, TimeoutError when a wait ends.
class Store {
 public:
  virtual ~Store() = default;
  // Sets `key`; an existing value is replaced.
  virtual void put(const std::string& key, const std::string& value) = 0;
  // The value of `key`, waiting until some rank puts it.
  virtual std::string get(const std::string& key, Milliseconds timeout) = 0;
  // The value if it is there now.
  virtual std::optional<std::string> try_get(const std::string& key) = 0;
  // Adds `delta` to the decimal number under `key` (0 if absent) and returns the sum.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  // Hands a duplicate of `fd` to the server under `key`. Only over a Unix socket (or in memory).
  virtual void put_fd(const std::string& key, int fd) = 0;
  // A duplicate of the descriptor under `key`, waiting until it is put.
  virtual UniqueFd get_fd(const std::string& key, Milliseconds timeout) = 0;
};

}  // namespace starling
