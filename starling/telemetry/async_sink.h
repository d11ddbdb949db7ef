// AsyncSink passes events to another sink on its own thread. A slow disk, an fsync of SQLite or a terminal
// that was stopped with Ctrl-S therefore never delays a training step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>

#include "starling/base/clock.h"
#include "starling/telemetry/sink.h"

namespace starling {

struct AsyncSinkOptions {
  size_t capacity = 4096;  // events that may be queued before further StepDone events are dropped
  // The longest time that emit() waits for the delivery of an event other than StepDone, and that flush()
  // waits. It keeps the output of the inner sink above what the program prints next. After one wait in vain,
  // neither waits again until the queue is empty. 0: emit() never waits. flush() then waits up to 10 s.
  Nanoseconds patience{0};
  bool progress = false;  // show_progress() reaches the inner sink.
  // The end of the warning "5 steps are missing from …". Empty: there is no warning.
  std::string missing_from = "the files of the run folder, because the disk was too slow";
};

// emit() copies the event and the time into a queue and returns. If `capacity` events are queued, further
// StepDone events and all progress of evaluations are dropped. A warning to the inner sink then states how
// many steps were dropped. Events of other kinds are always kept. The inner sink is flushed if no event
// arrives for half a second. The destructor delivers all queued events.
class AsyncSink final : public EventSink {
 public:
  explicit AsyncSink(std::unique_ptr<EventSink> inner, AsyncSinkOptions options = {});
  ~AsyncSink() override;
  void emit(const Event& event) override;
  void emit_at(const Event& event, double time) override;
  void show_progress(const EvalProgress& progress) override;
  // Waits until the inner sink has received and flushed all earlier events, or for the longest time.
  void flush() override;

 private:
  struct Item {
    std::variant<Event, EvalProgress> what;
    double time = 0;  // of the event
  };
  void run();
  void deliver(const Item& item);

  std::unique_ptr<EventSink> inner_;
  const AsyncSinkOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Item> queue_;
  uint64_t queued_ = 0, delivered_ = 0;  // items since the beginning
  bool stalled_ = false;                 // a call waited in vain, and the queue was not empty since
  uint64_t dropped_ = 0;
  uint64_t flush_wanted_ = 0, flush_done_ = 0;
  bool dirty_ = false;  // the inner sink received events after its last flush
  bool stop_ = false;
  std::thread thread_;  // the last member, because the thread uses all other members
};

}  // namespace starling
