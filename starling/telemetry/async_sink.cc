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

AsyncSink::AsyncSink(std::unique_ptr<EventSink> inner, size_t capacity)
    : inner_(std::move(inner)), capacity_(capacity), thread_(thread_without_signals([this] { run(); })) {}

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
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= capacity_ && std::holds_alternative<StepDone>(event)) {
      ++dropped_;
      return;
    }
    queue_.emplace_back(event, time);
  }
  wake_.notify_one();
}

void AsyncSink::flush() {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = ++flush_wanted_;
  wake_.notify_one();
  flushed_.wait_for(lock, std::chrono::seconds(10), [&] { return flush_done_ >= ticket; });
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
    std::deque<std::pair<Event, double>> batch;
    batch.swap(queue_);
    if (dropped_ > 0) {
      batch.emplace_back(
          Message{Severity::kWarning, -1,
                  fmt::format(
                      "{} steps are missing from the files of the run folder, because the disk was too slow",
                      dropped_)},
          unix_time_s());
      dropped_ = 0;
    }
    const uint64_t ticket = flush_wanted_;
    const bool flush_now = idle || stop_ || ticket > flush_done_;
    const bool last = stop_;
    lock.unlock();
    for (const auto& [event, time] : batch) inner_->emit_at(event, time);
    if (flush_now) inner_->flush();
    lock.lock();
    dirty_ = !flush_now && (dirty_ || !batch.empty());
    if (flush_now) {
      flush_done_ = ticket;
      flushed_.notify_all();
    }
    if (last && queue_.empty()) return;
  }
}

}  // namespace starling
