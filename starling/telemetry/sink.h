// Where events go.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "starling/telemetry/event.h"

namespace starling {

// Takes events. Implementations are thread-safe, never throw for a full disk or a closed pipe (they go silent
// and say so once on standard error), and do not block training on I/O longer than a buffered write.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void emit(const Event& event) = 0;
  // Everything emitted so far is visible to other processes when this returns.
  virtual void flush() {}
};

// Forwards to several sinks, in order.
class FanoutSink final : public EventSink {
 public:
  explicit FanoutSink(std::vector<std::unique_ptr<EventSink>> sinks) : sinks_(std::move(sinks)) {}
  void emit(const Event& event) override {
    const std::shared_lock lock(mutex_);
    for (auto& sink : sinks_) sink->emit(event);
  }
  void flush() override {
    const std::shared_lock lock(mutex_);
    for (auto& sink : sinks_) sink->flush();
  }
  // Events from now on go there, too.
  void add(std::unique_ptr<EventSink> sink) {
    const std::unique_lock lock(mutex_);
    sinks_.push_back(std::move(sink));
  }

 private:
  std::shared_mutex mutex_;  // guards the list
  std::vector<std::unique_ptr<EventSink>> sinks_;
};

}  // namespace starling
