// Work is the handle of an operation that a Group has started. The term and its meaning are those of c10d.
//
// A started operation progresses without further calls into the group, also after its Work is dropped. It
// borrows the caller's memory until is_completed() returns true. Until then the caller must not free it,
// write to what the operation reads, or use what it writes. After an error, MPI may use the memory until
// the process ends. A peer of the host may write to a window until it leaves the group.
// Threads: all functions may be called from any thread.
#pragma once

#include <exception>
#include <memory>

namespace starling {

// Work is the interface of the handle.
class Work {
 public:
  virtual ~Work() = default;
  // Returns true after the operation has succeeded or failed. It does not wait.
  virtual bool is_completed() const = 0;
  // Returns what the operation has thrown. Null while it is in progress and after it has succeeded.
  virtual std::exception_ptr error() const = 0;
  // Returns when the operation is completed. An operation begins when the operations that come before it
  // (comm/group.h) are done. From then on, the timeout of the group bounds each of its waits.
  // Errors: what the operation has thrown (CommError, TimeoutError). A second call throws it again.
  virtual void wait() = 0;
};

// A handle may be kept by several owners.
using WorkPtr = std::shared_ptr<Work>;

}  // namespace starling
