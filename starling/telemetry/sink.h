// Where events go.
#pragma once

#include <memory>
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
    for (auto& sink : sinks_) sink->emit(event);
  }
  void flush() override {
    for (auto& sink : sinks_) sink->flush();
  }

 private:
  std::vector<std::unique_ptr<EventSink>> sinks_;
};

}  // namespace starling
