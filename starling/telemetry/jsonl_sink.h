// Events as JSON, one object a line (to_json.h): events.jsonl in the run folder, and --json on standard
// output.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "starling/base/clock.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/sink.h"

namespace starling {

// Lines are gathered and written together: at most every `max_delay`, at 32 KiB, with every event but
// StepDone, and by flush(). A delay of 0 writes each line at once.
class JsonlSink final : public EventSink {
 public:
  JsonlSink(std::unique_ptr<Output> output, const Clock& clock, std::string name,
            Nanoseconds max_delay = std::chrono::milliseconds(200));
  ~JsonlSink() override;
  void emit(const Event& event) override;
  void flush() override;

 private:
  void write_pending();

  std::mutex mutex_;
  std::unique_ptr<Output> output_;
  const Clock& clock_;
  const std::string name_;  // of the file, for the one complaint on standard error
  const Nanoseconds max_delay_;
  Nanoseconds last_write_;
  std::string pending_;
  bool silent_ = false;
};

// Appends to the file at `path` (made with mode 0666 & ~umask). ConfigError if it cannot be opened.
std::unique_ptr<EventSink> open_jsonl_file(const std::string& path, const Clock& clock);

}  // namespace starling
