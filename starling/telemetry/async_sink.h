// AsyncSink: hands events to another sink on a thread of its own, so that a slow disk, SQLite's fsync or a
// terminal that was stopped with Ctrl-S never holds up a training step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "starling/telemetry/sink.h"

namespace starling {

// emit() copies the event into a queue and returns. When `capacity` events wait, further StepDone events are
// dropped (and counted in a warning to the inner sink once there is room); other events are always kept. The
// inner sink is flushed when nothing has come for half a second. The destructor delivers everything first.
class AsyncSink final : public EventSink {
 public:
  explicit AsyncSink(std::unique_ptr<EventSink> inner, size_t capacity = 4096);
  ~AsyncSink() override;
  void emit(const Event& event) override;
  // Waits until the inner sink has taken and flushed what was emitted before, at most ten seconds.
  void flush() override;

 private:
  void run();

  std::unique_ptr<EventSink> inner_;
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable wake_, flushed_;
  std::deque<Event> queue_;
  uint64_t dropped_ = 0;
  uint64_t flush_wanted_ = 0, flush_done_ = 0;
  bool dirty_ = false;  // the inner sink took events since its last flush
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace starling
