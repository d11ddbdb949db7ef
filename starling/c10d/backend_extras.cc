// The functions of StarlingBackend besides communication: windows, memory, hooks, and those that are not
// offered.
#include <fmt/format.h>

#include <utility>

#include "starling/base/error.h"
#include "starling/c10d/backend.h"
#include "starling/c10d/backend_calls.h"
#include "starling/c10d/one_sided.h"

namespace starling {
namespace {

// How much longer than the group's timeout a wait for all operations lasts. The group then ends an operation
// first, and its error tells more than that of the wait.
constexpr std::chrono::milliseconds kEngineFirst{2'000};

[[noreturn]] void not_offered(const char* call, const char* instead) {
  throw Error(ErrorCode::kConfig, fmt::format("the backend starling has no {}: {}", call, instead));
}

}  // namespace

StarlingBackend::WorkPtr StarlingBackend::in_order(const char* title,
                                                   const std::function<void(Group&)>& body) {
  c10d::BarrierOptions options;
  options.asyncOp = false;
  return collective(c10d::OpType::UNKNOWN, title, options, {}, body);
}

bool StarlingBackend::supportsWindow() const {
  const std::lock_guard lock(group_mutex_);
  return group_ != nullptr && group_->local_ranks().size() == static_cast<size_t>(size_);
}

c10::intrusive_ptr<c10d::Window> StarlingBackend::new_window(const std::optional<at::Tensor>& tensor) {
  group();
  if (!supportsWindow())
    not_offered("windows between hosts",
                "they are memory that the ranks of one host share; use send and recv");
  auto window = c10::make_intrusive<StarlingWindow>(
      c10::intrusive_ptr<StarlingBackend>::unsafe_reclaim_from_nonowning(this), windows_++);
  if (tensor) window->tensor_register(*tensor);
  return window;
}

std::shared_ptr<Window> StarlingBackend::window_of(Group& group, size_t bytes) {
  auto window = group.allocate_window(bytes);
  ++shared_regions_;
  shared_bytes_ += window->bytes();
  return window;
}

std::unordered_map<std::string, uint64_t> StarlingBackend::getMemoryStats() {
  return {{"shared_regions", shared_regions_}, {"shared_bytes", shared_bytes_}};
}

void StarlingBackend::registerAbortHook(int64_t id, c10d::AbortHook hook) {
  hooks_->set_abort_hook(id, std::move(hook));
}

void StarlingBackend::registerCompletionHook(int64_t id, c10d::CompletionHook hook) {
  hooks_->set_completion_hook(id, std::move(hook));
}

void StarlingBackend::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  if (onCompletionHook_)
    not_offered("second onCompletion hook", "use registerCompletionHook() for more than one");
  onCompletionHook_ = hook;  // for hasHooks()
  hooks_->set_info_hook(std::move(hook));
}

void StarlingBackend::waitForPendingWorks() {
  const std::chrono::milliseconds set(wait_limit_);
  const auto limit = set.count() > 0 ? set : rendezvous_.group.timeout + kEngineFirst;
  const int left = hooks_->wait_for_none(limit);
  if (left == 0) return;
  throw TimeoutError(fmt::format(
      "rank {}: none of {} pending operations has ended within {} ms; wait longer, or see the logs "
      "of the other ranks (timeout)",
      rank_, left, limit.count()));
}

void StarlingBackend::startTimeEstimate() {
  not_offered("estimates of time", "`starling bench comm` measures the time of each collective");
}

float StarlingBackend::endTimeEstimate() {
  not_offered("estimates of time", "`starling bench comm` measures the time of each collective");
}

std::shared_ptr<c10::Allocator> StarlingBackend::getMemAllocator() {
  not_offered("allocator for a memory pool",
              "shared memory is made by all ranks together; call allocateTensor() on each");
}

void StarlingBackend::suspend() {
  not_offered("suspend()", "it holds memory of the host only; shutdown() gives it back");
}

void StarlingBackend::resume() {
  not_offered("resume()", "it is never suspended; make a new process group after shutdown()");
}

}  // namespace starling
