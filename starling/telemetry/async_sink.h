// AsyncSink passes events to another sink on its own thread. A slow disk, an fsync of SQLite or a terminal
// that was stopped with Ctrl-S therefore never delays a training step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "starling/telemetry/sink.h"

namespace starling {

// emit() copies the event and the time into a queue and returns. If `capacity` events are queued, further
// StepDone events are dropped. A warning to the inner sink then states how many were dropped. Events of other
// kinds are always kept. The inner sink is flushed if no event arrives for half a second. The destructor
// delivers all queued events.
class AsyncSink final : public EventSink {
 public:
  explicit AsyncSink(std::unique_ptr<EventSink> inner, size_t capacity = 4096);
  ~AsyncSink() override;
  void emit(const Event& event) override;
  void emit_at(const Event& event, double time) override;
  // Waits until the inner sink has received and flushed all earlier events, at most ten seconds.
  void flush() override;

 private:
  void run();

  std::unique_ptr<EventSink> inner_;
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable wake_, flushed_;
  std::deque<std::pair<Event, double>> queue_;  // with the times of the events
  uint64_t dropped_ = 0;
  uint64_t flush_wanted_ = 0, flush_done_ = 0;
  bool dirty_ = false;  // the inner sink received events after its last flush
  bool stop_ = false;
  std::thread thread_;  // the last member, because the thread uses all other members
};

}  // namespace starling
