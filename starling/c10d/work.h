// StarlingWork: the handle of one operation of StarlingBackend, completed by whoever carries the operation out.
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

struct WorkDescription {
  int rank = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";  // "starling:all_reduce": in profiles and messages
  uint64_t sequence = 0;   // of the backend's collectives, or of its sends and receives, from 1
  // Of a wait() that gives none; 0 or less: such a wait ends when the engine's own timeout ends the operation.
  std::chrono::milliseconds timeout{0};
};

// Threads: all functions may be called from any thread.
class StarlingWork final : public c10d::Work {
 public:
  // hooks: those of the backend; null for none.
  StarlingWork(const WorkDescription& description, std::vector<at::Tensor> outputs,
               std::shared_ptr<WorkHooks> hooks = nullptr);
  ~StarlingWork() override;

  // Returns true when the result is in place; throws what the operation has thrown (CommError, TimeoutError …). After
  // `timeout` a TimeoutError: the operation goes on, and may be waited for again. A wait from a callback of a future
  // for an operation that the callback's own thread would carry out ends by that timeout only.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  // Completed with the list of the output tensors, after the Work is; its callbacks run in the thread of the operation.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return description_.sequence; }
  std::chrono::milliseconds getTimeout() const override { return description_.timeout; }

  // Completed with the WorkResult as a number, whatever the end.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  // Of a recvAnysource that has completed; else -1.
  int sourceRank() const override { return source_rank_; }
  void set_source_rank(int rank) { source_rank_ = rank; }  // before complete()

  // Milliseconds from the begin of the operation to its end, without the time in which it was queued. Error(kConfig) where it
  // was not timed, or has not ended.
  float getDuration() const override;
  // The operation is being carried out from now on. Optional; before complete().
  void begin();

  // Once. error: what the operation has thrown, null for none.
  void complete(std::exception_ptr error);

 private:
  // Completes the futures that exist if the result does. Call without the mutex.
  void settle();

  const WorkDescription description_;
  const std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;         // guarded by mutex_; null until asked for
  bool settled_ = false;                                   // guarded by mutex_
  c10::intrusive_ptr<c10::ivalue::Future> result_future_;  // the same for getFutureResult
  bool result_settled_ = false;                            // guarded by mutex_
  std::atomic<int> source_rank_{-1};
  const std::shared_ptr<WorkHooks> hooks_;
  std::optional<WorkHooks::Span> span_;  // the begin before, all of it from complete()
  std::atomic<bool> ended_{false};       // nothing changes span_ any more
};

}  // namespace starling
