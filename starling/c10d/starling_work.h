// StarlingWork is the handle of one operation of StarlingBackend. The thread that executes the operation
// completes it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/c10d/work_hooks.h"

namespace starling {

// What a Work tells about its operation.
struct WorkDescription {
  int rank = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";  // for profiles and messages, such as "starling:all_reduce"
  // The number among the backend's collectives, or among its sends and receives, from 1.
  uint64_t sequence = 0;
  // Bounds a wait() that gives no timeout. 0 or less: such a wait ends when the group's timeout ends the
  // operation.
  std::chrono::milliseconds timeout{0};
};

// Threads: all functions may be called from any thread.
class StarlingWork final : public c10d::Work {
 public:
  // `hooks` are those of the backend, or null for none.
  StarlingWork(const WorkDescription& description, std::vector<at::Tensor> outputs,
               std::shared_ptr<WorkHooks> hooks = nullptr);
  ~StarlingWork() override;

  // Returns true when the result is in place. Errors: what the operation has thrown (CommError, TimeoutError,
  // …). After `timeout` it throws TimeoutError; the operation continues, and the caller may wait again.
  //
  // A callback of a future must not wait for an operation that the callback's own thread would execute. Such
  // a wait ends by the timeout only.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Returns the output tensors.
  std::vector<at::Tensor> result() override { return outputs_; }
  // Returns a future that completes with the list of the output tensors, after the Work does. Its callbacks
  // run in the thread of the operation.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // Returns WorkDescription::sequence.
  uint64_t getSequencenumber() const override { return description_.sequence; }
  // Returns WorkDescription::timeout.
  std::chrono::milliseconds getTimeout() const override { return description_.timeout; }

  // Returns a future that completes with the WorkResult as a number, however the operation ends.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  // Returns the sender of a recvAnysource that has completed, and -1 for other operations.
  int sourceRank() const override { return source_rank_; }
  // Sets sourceRank(). Call before complete().
  void set_source_rank(int rank) { source_rank_ = rank; }

  // Returns the milliseconds from the begin of the operation to its end, without the time in the queue.
  // Errors: Error(kConfig) if the operation was not timed or has not ended.
  float getDuration() const override;
  // Marks the begin of the execution, for getDuration(). The call is optional and comes before complete().
  void begin();

  // Completes the Work, once. `error` is what the operation has thrown, or null.
  void complete(std::exception_ptr error);

 private:
  // Completes the futures that exist if the result exists. Call without the mutex.
  void settle();

  const WorkDescription description_;
  const std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;         // guarded by mutex_; null until requested
  bool settled_ = false;                                   // guarded by mutex_
  c10::intrusive_ptr<c10::ivalue::Future> result_future_;  // as future_, for getFutureResult()
  bool result_settled_ = false;                            // guarded by mutex_
  std::atomic<int> source_rank_{-1};
  const std::shared_ptr<WorkHooks> hooks_;
  std::optional<WorkHooks::Span> span_;  // the begin before complete(), then the begin and the end
  std::atomic<bool> ended_{false};       // true: span_ does not change any more
};

}  // namespace starling
