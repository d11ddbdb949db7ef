// Writes events as JSON, one object per line (to_json.h): to events.jsonl in the run folder, and to standard
// output with --json.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "starling/base/clock.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/sink.h"

namespace starling {

// JsonlSink buffers lines. It writes the buffer with the first event after `max_delay`, when the buffer
// reaches 32 KiB, with every event other than StepDone, and in flush(). With a delay of 0, every line is
// written immediately. Every line has the time of its event and `run_id`, which names the start of the run.
class JsonlSink final : public EventSink {
 public:
  JsonlSink(std::unique_ptr<Output> output, const Clock& clock, std::string name,
            Nanoseconds max_delay = std::chrono::milliseconds(200), std::string run_id = "");
  ~JsonlSink() override;
  void emit(const Event& event) override;
  void emit_at(const Event& event, double time) override;
  void flush() override;

 private:
  void write_pending();

  std::mutex mutex_;
  std::unique_ptr<Output> output_;
  const Clock& clock_;
  const std::string name_;  // name of the file, for the error message on standard error
  const Nanoseconds max_delay_;
  const std::string run_id_;
  Nanoseconds last_write_;
  std::string pending_;
  bool silent_ = false;
};

// Returns a sink that appends to the file at `path`. A new file gets mode 0666 & ~umask. If `open` is given
// and returns false, events are dropped (FencedOutput). Throws ConfigError if the file cannot be opened.
std::unique_ptr<EventSink> open_jsonl_file(const std::string& path, const Clock& clock,
                                           std::function<bool()> open = {}, std::string run_id = "");

}  // namespace starling
