// How waits for MPI end: the operation has ended, the timeout has passed, or the group has failed meanwhile.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "starling/comm/group.h"
#include "starling/comm/liveness.h"
#include "starling/comm/mpi/plugin.h"

namespace starling {

// Who keeps a wait waiting, as far as it is known: "rank 2 (node-b) did not enter barrier #7".
struct Lateness {
  std::string text;
  int rank = -1;
};

struct MpiWatch {
  std::function<Lateness()> late = {};
  // Called every few milliseconds of a wait, with true from a twentieth of the timeout on; may be null.
  std::function<void(bool long_wait)> look = {};
};

// Thread-safe.
class MpiPatience {
 public:
  explicit MpiPatience(const GroupOptions& options) : options_(options) {}
  // Until the transfer has ended: first polling, then yielding, then asleep between looks. TimeoutError after options.timeout, CommError
  // "WHAT: MPI's text" where it ends badly, and what fail() was told; the group has then failed, for what is under way stays so.
  void wait(MpiTransfer& transfer, const std::string& what, const MpiWatch& watch);
  // Ends all waits, now and later; the first failure stays.
  void fail(const Failure& failure);
  bool failed() const { return failed_; }
  // Throws where the group has failed.
  void check() const;

 private:
  [[noreturn]] void give_up(const Failure& failure);

  const GroupOptions& options_;
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  Failure failure_;
};

}  // namespace starling
