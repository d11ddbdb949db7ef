#include "starling/c10d/work_hooks.h"

#include <c10/util/Exception.h>

#include <exception>
#include <utility>

namespace starling {
namespace {

// Calls a hook, which is code of the user. An operation must not fail because a hook fails.
template <typename Hook, typename... Arguments>
void call_hook(const char* what, const Hook& hook, Arguments&&... arguments) {
  try {
    hook(std::forward<Arguments>(arguments)...);
  } catch (const std::exception& error) {
    TORCH_WARN("starling: ", what, " hook has thrown: ", error.what());
  } catch (...) {
    TORCH_WARN("starling: ", what, " hook has thrown");
  }
}

}  // namespace

void WorkHooks::set_abort_hook(int64_t id, c10d::AbortHook hook) {
  const std::lock_guard lock(mutex_);
  abort_[id] = std::move(hook);
}

void WorkHooks::remove_abort_hook(int64_t id) {
  const std::lock_guard lock(mutex_);
  abort_.erase(id);
}

void WorkHooks::set_completion_hook(int64_t id, c10d::CompletionHook hook) {
  const std::lock_guard lock(mutex_);
  completion_[id] = std::move(hook);
  watched_ = true;
}

void WorkHooks::remove_completion_hook(int64_t id) {
  const std::lock_guard lock(mutex_);
  completion_.erase(id);
}

void WorkHooks::set_info_hook(InfoHook hook) {
  const std::lock_guard lock(mutex_);
  info_ = std::move(hook);
  timed_ = true;
  watched_ = true;
}

void WorkHooks::failing() const {
  std::map<int64_t, c10d::AbortHook> hooks;
  {
    const std::lock_guard lock(mutex_);
    hooks = abort_;
  }
  for (const auto& [id, hook] : hooks) call_hook("an abort", hook);
}

void WorkHooks::succeeded(c10d::Work& work, const std::optional<Span>& span) const {
  if (!watched_) return;
  std::map<int64_t, c10d::CompletionHook> hooks;
  InfoHook info;
  {
    const std::lock_guard lock(mutex_);
    hooks = completion_;
    info = info_;
  }
  c10d::CompletionHookArgs arguments{.completionKey = work.getCompletionKey(), .duration_ms = std::nullopt};
  if (span)
    arguments.duration_ms = std::chrono::duration<float, std::milli>(span->second - span->first).count();
  for (const auto& [id, hook] : hooks) call_hook("a completion", hook, arguments);
  if (info && span) {
    call_hook("a completion", info,
              std::make_shared<c10d::WorkInfo>(work.retrieveOpType(), work.getSequencenumber(), span->first,
                                               span->second, span->second - span->first));
  }
}

void WorkHooks::begun() {
  const std::lock_guard lock(pending_mutex_);
  ++pending_;
}

void WorkHooks::ended() {
  {
    const std::lock_guard lock(pending_mutex_);
    --pending_;
    ++endings_;
  }
  one_ended_.notify_all();
}

int WorkHooks::wait_for_none(std::chrono::milliseconds patience) const {
  std::unique_lock lock(pending_mutex_);
  while (pending_ > 0) {
    const uint64_t before = endings_;
    if (!one_ended_.wait_for(lock, patience, [&] { return pending_ == 0 || endings_ != before; })) break;
  }
  return pending_;
}

}  // namespace starling
