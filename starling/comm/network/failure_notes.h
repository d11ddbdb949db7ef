// FailureNotes: what a rank that fails writes to the store, for ranks of other hosts whose connection to it
// breaks.
//
// A rank cannot report its failure on a connection on which half a message has been sent. Without the note,
// the peer would take the failed rank for the culprit. If the host of the store is lost, there are no notes.
// A rank then looks for the host that no longer answers.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "starling/comm/host/liveness.h"
#include "starling/net/endpoint.h"
#include "starling/net/store/store.h"

namespace starling {

// Returns a Failure as text.
std::string failure_text(const Failure& failure);
// Returns the Failure that failure_text() has written, or nothing if the text is something else.
std::optional<Failure> parse_failure(const std::string& text);

// How long a rank watches its connections at least if the store is gone. By default a host counts as down
// after 4 s (kDeadAfter, comm.dead_after_s).
inline constexpr std::chrono::milliseconds kSilenceTime{6'000};

// FailureNotes writes and reads the notes of one group. It is thread-safe and does not throw. If the store is
// gone, it writes nothing and finds nothing.
class FailureNotes {
 public:
  // `prefix` is the prefix of the group's store keys. The store must outlive this object.
  FailureNotes(Store& store, std::string prefix, int rank)
      : store_(store), prefix_(std::move(prefix)), rank_(rank) {}

  // Writes this rank's failure. The first failure stays. Call it before closing a connection because of the
  // failure.
  void leave(const Failure& failure);
  // Returns the failure that the culprit of `found` has written, if it has failed itself. Otherwise returns
  // `found`. `connections` has this rank's connections by rank; they may be null. If the store is gone, the
  // call watches the connections for up to kSilenceTime, or for 1.5 times Endpoint::dead_after() if that is
  // longer. If the host of another rank does not answer, it
  // returns a failure that names that rank.
  Failure explain(const Failure& found, std::span<const std::unique_ptr<Endpoint>> connections) const;

 private:
  Store& store_;
  const std::string prefix_;
  const int rank_;
  std::atomic<bool> left_{false};
};

}  // namespace starling
