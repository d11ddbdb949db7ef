// Waits for MPI. A wait ends when the operation has ended, the timeout has passed, or the group has failed.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "starling/comm/group.h"
#include "starling/comm/host/liveness.h"
#include "starling/comm/mpi/mpi_plugin.h"

namespace starling {

// Lateness says which rank delays a wait, as far as it is known. The text is, for example, "rank 2 (node-b)
// did not enter barrier #7".
struct Lateness {
  std::string text;
  int rank = -1;
};

// MpiWatch holds the callbacks of a wait and says how the wait may use the processor.
struct MpiWatch {
  // Says who is late. It is called for a warning and for the TimeoutError.
  std::function<Lateness()> late = {};
  // Called every few milliseconds. The argument is true from a twentieth of the timeout on. It may be null.
  std::function<void(bool long_wait)> look = {};
  // Other threads of the process compute. The wait then only sleeps, because a thread that polls or yields
  // takes their core.
  bool beside_computation = false;
};

// MpiPatience waits for MPI operations of one group and remembers the first failure. It is thread-safe.
class MpiPatience {
 public:
  // `options` must outlive this object.
  explicit MpiPatience(const GroupOptions& options) : options_(options) {}
  // Waits until the transfer has ended. It first polls, then yields, then sleeps between looks.
  // `what` names the operation in errors.
  // Errors: TimeoutError after options.timeout; CommError with MPI's text if the transfer fails; the failure
  // that fail() was given. After an error the group has failed, because the operation stays under way.
  void wait(MpiTransfer& transfer, const std::string& what, const MpiWatch& watch);
  // Ends all waits, now and later. The first failure stays.
  void fail(const Failure& failure);
  // Returns whether the group has failed.
  bool failed() const { return failed_; }
  // Throws the failure if the group has failed.
  void check() const;

 private:
  [[noreturn]] void give_up(const Failure& failure);

  const GroupOptions& options_;
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  Failure failure_;
};

}  // namespace starling
