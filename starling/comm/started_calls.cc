#include "starling/comm/started_calls.h"

#include <fmt/format.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

class StartedWork final : public Work {
 public:
  bool is_completed() const override {
    const std::lock_guard lock(mutex_);
    return completed_;
  }
  std::exception_ptr error() const override {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return completed_; });
    if (error_) std::rethrow_exception(error_);
  }
  void complete(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    completed_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool completed_ = false;    // guarded by mutex_
  std::exception_ptr error_;  // guarded by mutex_
};

// OwnedCall is a call with its own copy of the counts.
struct OwnedCall {
  explicit OwnedCall(const Call& from)
      : in_counts(from.in_counts.begin(), from.in_counts.end()),
        out_counts(from.out_counts.begin(), from.out_counts.end()),
        call(from) {
    call.in_counts = in_counts;
    call.out_counts = out_counts;
  }
  OwnedCall(const OwnedCall&) = delete;
  std::vector<size_t> in_counts, out_counts;
  Call call;
};

Lane lane_of(const Call& call) {
  constexpr int64_t kSends = -1;  // tags are not negative
  if (call.kind == CollectiveKind::kSend) return {call.rank, kSends};
  if (call.kind == CollectiveKind::kRecv) return {call.rank, call.tag};
  return {};
}

}  // namespace

StartedCalls::StartedCalls(const std::string& what, Execute execute)
    : execute_(std::move(execute)), lanes_(fmt::format("{} has ended", what)) {}

WorkPtr StartedCalls::start(const Call& call, Progress progress) {
  const auto work = std::make_shared<StartedWork>();
  const auto owned = std::make_shared<const OwnedCall>(call);
  pending_.fetch_add(1, std::memory_order_acq_rel);
  try {
    lanes_.submit(lane_of(call), {[this, owned, progress] { execute_(owned->call, progress); },
                                  [this, work](std::exception_ptr error) {
                                    // Before complete(), so that the waiting thread finds nothing pending.
                                    pending_.fetch_sub(1, std::memory_order_acq_rel);
                                    work->complete(std::move(error));
                                  }});
  } catch (const CommError&) {  // the operation was refused and will not be executed
    pending_.fetch_sub(1, std::memory_order_acq_rel);
    throw;
  }
  return work;
}

void StartedCalls::run(const Call& call) {
  if (!pending() || !lanes_.busy(lane_of(call))) return execute_(call, Progress::kCaller);
  start(call, Progress::kCaller)->wait();
}

}  // namespace starling
