// FencedSink passes events to another sink as long as this process holds the run folder.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "starling/base/clock.h"
#include "starling/telemetry/sink.h"

namespace starling {

// A process that was stopped may find, when it goes on, that another process has taken over its run folder.
// `held` tells. FencedSink asks it before an event if the last answer is older than 50 ms, because the answer
// costs a look at the disk. After the first refusal it drops all events.
class FencedSink final : public EventSink {
 public:
  FencedSink(std::unique_ptr<EventSink> inner, std::function<bool()> held, const Clock& clock)
      : inner_(std::move(inner)), held_(std::move(held)), clock_(clock) {}
  void emit(const Event& event) override {
    if (is_open()) inner_->emit(event);
  }
  void emit_at(const Event& event, double time) override {
    if (is_open()) inner_->emit_at(event, time);
  }
  void flush() override {
    if (is_open()) inner_->flush();
  }

 private:
  bool is_open() {
    const std::lock_guard lock(mutex_);
    const Nanoseconds now = clock_.now();
    if (open_ && (!asked_ || now - last_ >= std::chrono::milliseconds(50))) {
      open_ = held_();
      asked_ = true;
      last_ = now;
    }
    return open_;
  }

  const std::unique_ptr<EventSink> inner_;
  const std::function<bool()> held_;
  const Clock& clock_;
  std::mutex mutex_;
  bool open_ = true, asked_ = false;
  Nanoseconds last_{};
};

}  // namespace starling
