// The interface for the destinations of events.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "starling/telemetry/event.h"

namespace starling {

// EventSink receives events. Implementations are thread-safe. They do not throw if a disk is full or a pipe
// is closed. They then stop writing and print one message to standard error. emit() may block as long as a
// write to the destination does. AsyncSink moves such writes to another thread.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void emit(const Event& event) = 0;
  // Like emit(), for an event that happened at `time`, in seconds since 1970. AsyncSink passes events on
  // later.
  virtual void emit_at(const Event& event, [[maybe_unused]] double time) { emit(event); }
  // Shows how far an evaluation is. A sink that keeps events ignores the call.
  virtual void show_progress([[maybe_unused]] const EvalProgress& progress) {}
  // Makes all earlier events visible to other processes.
  virtual void flush() {}
};

// FanoutSink forwards every event to several sinks, in order.
class FanoutSink final : public EventSink {
 public:
  explicit FanoutSink(std::vector<std::unique_ptr<EventSink>> sinks) : sinks_(std::move(sinks)) {}
  void emit(const Event& event) override {
    const std::shared_lock lock(mutex_);
    for (auto& sink : sinks_) sink->emit(event);
  }
  void show_progress(const EvalProgress& progress) override {
    const std::shared_lock lock(mutex_);
    for (auto& sink : sinks_) sink->show_progress(progress);
  }
  void flush() override {
    const std::shared_lock lock(mutex_);
    for (auto& sink : sinks_) sink->flush();
  }
  // Adds a sink for all later events.
  void add(std::unique_ptr<EventSink> sink) {
    const std::unique_lock lock(mutex_);
    sinks_.push_back(std::move(sink));
  }

 private:
  std::shared_mutex mutex_;  // protects the list
  std::vector<std::unique_ptr<EventSink>> sinks_;
};

}  // namespace starling
