// FailureNotes: what a rank that fails leaves in the store, for ranks of other hosts whose connection to it breaks: it cannot say
// why on a connection on which it has sent half of a message. Without the note they would take it for the culprit.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "starling/comm/liveness.h"
#include "starling/net/store.h"

namespace starling {

// A Failure as text and back; nothing where the text is none.
std::string failure_text(const Failure& failure);
std::optional<Failure> parse_failure(const std::string& text);

// Thread-safe. Does not throw: where the store is gone nothing is left, and nothing found.
class FailureNotes {
 public:
  // prefix: of the group's keys. The store outlives the notes.
  FailureNotes(Store& store, std::string prefix, int rank)
      : store_(store), prefix_(std::move(prefix)), rank_(rank) {}

  // Leaves this rank's failure; the first one stays. Call it before a connection is closed because of it.
  void leave(const Failure& failure);
  // The failure that the culprit of `found` has left, if it has failed itself; else `found`.
  Failure explain(const Failure& found) const;

 private:
  Store& store_;
  const std::string prefix_;
  const int rank_;
  std::atomic<bool> left_{false};
};

}  // namespace starling
