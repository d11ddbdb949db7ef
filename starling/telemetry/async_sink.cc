#include "starling/telemetry/async_sink.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>

#include "starling/telemetry/unix_time.h"

namespace starling {
namespace {

// Starts a thread that blocks all signals, so that other threads receive them.
std::thread thread_without_signals(auto body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

AsyncSink::AsyncSink(std::unique_ptr<EventSink> inner, AsyncSinkOptions options)
    : inner_(std::move(inner)),
      options_(std::move(options)),
      thread_(thread_without_signals([this] { run(); })) {}

AsyncSink::~AsyncSink() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void AsyncSink::emit(const Event& event) {
  emit_at(event, unix_time_s());
}

void AsyncSink::emit_at(const Event& event, double time) {
  const bool step = std::holds_alternative<StepDone>(event);
  std::unique_lock lock(mutex_);
  if (step && queue_.size() >= options_.capacity) {
    ++dropped_;
    return;
  }
  queue_.push_back({event, time});
  const uint64_t ticket = ++queued_;
  wake_.notify_one();
  if (step || stalled_ || options_.patience == Nanoseconds{0}) return;
  stalled_ = !done_.wait_for(lock, options_.patience, [&] { return delivered_ >= ticket; });
}

void AsyncSink::show_progress(const EvalProgress& progress) {
  if (!options_.progress) return;
  const std::lock_guard lock(mutex_);
  if (queue_.size() >= options_.capacity) return;
  queue_.push_back({progress});
  ++queued_;
  wake_.notify_one();
}

void AsyncSink::flush() {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = ++flush_wanted_;
  wake_.notify_one();
  if (stalled_) return;
  const bool limited = options_.patience > Nanoseconds{0};
  const Nanoseconds longest = limited ? options_.patience : std::chrono::seconds(10);
  const bool done = done_.wait_for(lock, longest, [&] { return flush_done_ >= ticket; });
  stalled_ = limited && !done;
}

void AsyncSink::deliver(const Item& item) {
  if (const auto* event = std::get_if<Event>(&item.what))
    inner_->emit_at(*event, item.time);
  else
    inner_->show_progress(std::get<EvalProgress>(item.what));
}

void AsyncSink::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto work = [this] { return stop_ || !queue_.empty() || flush_wanted_ > flush_done_; };
    bool idle = false;
    if (dirty_) {
      idle = !wake_.wait_for(lock, std::chrono::milliseconds(500), work);
    } else {
      wake_.wait(lock, work);
    }
    std::deque<Item> batch;
    batch.swap(queue_);
    const uint64_t taken = queued_;
    if (dropped_ > 0 && !options_.missing_from.empty()) {
      const std::string text = fmt::format("{} steps are missing from {}", dropped_, options_.missing_from);
      batch.push_back({Message{Severity::kWarning, -1, text}, unix_time_s()});
    }
    dropped_ = 0;
    const uint64_t ticket = flush_wanted_;
    const bool flush_now = idle || stop_ || ticket > flush_done_;
    const bool last = stop_;
    lock.unlock();
    for (const auto& item : batch) deliver(item);
    if (flush_now) inner_->flush();
    lock.lock();
    dirty_ = !flush_now && (dirty_ || !batch.empty());
    delivered_ = taken;
    if (queue_.empty()) stalled_ = false;
    if (flush_now) flush_done_ = ticket;
    done_.notify_all();
    if (last && queue_.empty()) return;
  }
}

}  // namespace starling
