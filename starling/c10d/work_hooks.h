// WorkHooks holds the hooks that a backend calls at failures and completions, and counts the operations that
// are in progress.
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

// Threads: all functions may be called from any thread. Hooks run in the thread of the operation, and abort
// hooks also in the thread that calls abort(). No lock of this class is held meanwhile. Hooks must not call
// the backend. An exception of a hook becomes a warning.
class WorkHooks {
 public:
  // The begin and the end of an operation.
  using Span = std::pair<std::chrono::steady_clock::time_point, std::chrono::steady_clock::time_point>;
  // Receives each operation that succeeds.
  using InfoHook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  // Sets the abort hook with the number `id`. It replaces an earlier one of this number.
  void set_abort_hook(int64_t id, c10d::AbortHook hook);
  // Removes the abort hook with the number `id`, if there is one.
  void remove_abort_hook(int64_t id);
  // Sets the completion hook with the number `id`. It replaces an earlier one of this number.
  void set_completion_hook(int64_t id, c10d::CompletionHook hook);
  // Removes the completion hook with the number `id`, if there is one.
  void remove_completion_hook(int64_t id);
  // Sets the only info hook. Operations are timed from now on.
  void set_info_hook(InfoHook hook);

  // Makes later operations measure their time.
  void time_operations() { timed_ = true; }
  // Returns whether operations measure their time.
  bool timed() const { return timed_; }

  // Calls the abort hooks: a failure was found, or abort() was called.
  void failing() const;
  // Calls the hooks of completions. `span` is the begin and the end of the operation, if it was timed.
  void succeeded(c10d::Work& work, const std::optional<Span>& span) const;

  // Counts an operation that is in progress.
  void begun();
  // Counts the end of an operation.
  void ended();
  // Waits until no operation is in progress and returns 0. If none has ended for `patience`, returns the
  // number of operations in progress.
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
