// WorkHooks: whom a backend tells about its operations: hooks at failures and at completions, and who waits for all.
#pragma once

#include <torch/csrc/distributed/c10d/Hooks.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace starling {

// Threads: all functions may be called from any thread. Hooks run in the thread of the operation, without a lock of ours; they
// must not call the backend. What a hook throws is a warning.
class WorkHooks {
 public:
  using Span = std::pair<std::chrono::steady_clock::time_point, std::chrono::steady_clock::time_point>;
  using InfoHook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  // By the caller's number; the same number again replaces. remove_*: a number that is not there is no error.
  void set_abort_hook(int64_t id, c10d::AbortHook hook);
  void remove_abort_hook(int64_t id);
  void set_completion_hook(int64_t id, c10d::CompletionHook hook);
  void remove_completion_hook(int64_t id);
  // One; told of each operation that succeeded. Times operations from now on.
  void set_info_hook(InfoHook hook);

  void time_operations() { timed_ = true; }
  bool timed() const { return timed_; }

  // A failure has been found, or abort() called.
  void failing() const;
  // An operation has ended well. span: when it began and ended, where it was timed.
  void succeeded(c10d::Work& work, const std::optional<Span>& span) const;

  // Operations that are under way.
  void begun();
  void ended();
  // Waits until there are none; returns how many there are yet where none has ended for `patience`.
  int wait_for_none(std::chrono::milliseconds patience) const;

 private:
  std::atomic<bool> timed_{false};
  std::atomic<bool> watched_{false};  // there is, or was, a hook of completions
  mutable std::mutex pending_mutex_;
  mutable std::condition_variable one_ended_;
  int pending_ = 0;       // guarded by pending_mutex_
  uint64_t endings_ = 0;  // guarded by pending_mutex_
  mutable std::mutex mutex_;
  std::map<int64_t, c10d::AbortHook> abort_;            // guarded by mutex_
  std::map<int64_t, c10d::CompletionHook> completion_;  // guarded by mutex_
  InfoHook info_;                                       // guarded by mutex_
};

}  // namespace starling
