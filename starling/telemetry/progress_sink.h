// What a person sees of a run. On a terminal: one live line at the bottom, messages and evaluations above it,
// and the summary at the end. Elsewhere (a file, a pipe, CI): plain lines.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "starling/base/clock.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/progress_line.h"
#include "starling/telemetry/sink.h"

namespace starling {

enum class Verbosity {
  kQuiet,
  kNormal,
  kVerbose
};  // -q: the result and errors only; -v: debug messages, learning rate, step times

struct ProgressOptions {
  bool terminal = false;  // a live line; false: plain lines
  bool color = false;     // the caller has looked at --color, NO_COLOR and TERM
  Verbosity verbosity = Verbosity::kNormal;
};

// The live line is redrawn at most ten times a second. Plain lines come with the first and last step, at
// every tenth of the run, and otherwise after max(2 s, 5 % of the time so far), so that a long run does not
// fill a disk.
class ProgressSink final : public EventSink {
 public:
  ProgressSink(std::unique_ptr<Output> output, const Clock& clock, const ProgressOptions& options);
  ~ProgressSink() override;  // leaves the cursor on a line of its own
  void emit(const Event& event) override;
  void flush() override;

 private:
  void show(const RunStarted& e);
  void show(const StepDone& e);
  void show(const EvalDone& e);
  void show(const CheckpointDone& e);
  void show(const Message& e);
  void show(const RunResult& e);
  void show(const RanksLost& e);
  void draw(const StepDone& e);        // the live line
  void draw_pending();                 // the newest step, if the live line is behind it
  void print_above(std::string_view);  // whole lines, then the live line again
  bool plain_line_due(const StepDone& e);
  void write(const std::string& text);

  std::mutex mutex_;
  std::unique_ptr<Output> output_;
  const Clock& clock_;
  const ProgressOptions options_;
  ProgressScale scale_;
  std::optional<StepDone> last_;
  const Nanoseconds started_;
  Nanoseconds last_drawn_;
  int64_t last_drawn_step_ = -1;
  bool drawn_ = false;  // the cursor stands behind a live line
  bool silent_ = false;
};

}  // namespace starling
