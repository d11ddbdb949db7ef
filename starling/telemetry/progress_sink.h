// Shows a run to the user. On a terminal, a live line at the bottom shows the progress, messages and
// evaluations appear above it, and a summary follows at the end. In a file or a pipe, the output consists of
// plain lines.
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
  kQuiet,  // -q: the result and errors only
  kNormal,
  kVerbose  // -v: also debug messages, the learning rate and step times
};

struct ProgressOptions {
  bool terminal = false;  // true: a live line; false: plain lines
  bool color = false;     // the caller decides by --color, NO_COLOR and TERM
  Verbosity verbosity = Verbosity::kNormal;
};

// ProgressSink redraws the live line at most ten times per second. Plain lines are written for the first and
// the last step. A plain line is also written after each tenth of the run if the last line is 0.5 s old.
// Other plain lines are at least max(2 s, 5 % of the elapsed time) apart, so that a long run does not fill a
// disk.
class ProgressSink final : public EventSink {
 public:
  ProgressSink(std::unique_ptr<Output> output, const Clock& clock, const ProgressOptions& options);
  ~ProgressSink() override;  // moves the cursor to an empty line
  void emit(const Event& event) override;
  // Shows the evaluation on the live line of a terminal. Plain output does not show it.
  void show_progress(const EvalProgress& progress) override;
  void flush() override;

 private:
  void show(const RunStarted& e);
  void show(const StepDone& e);
  void show(const EvalDone& e);
  void show(const CheckpointDone& e);
  void show(const Message& e);
  void show(const RunResult& e);
  void show(const RanksLost& e);
  void draw(const StepDone& e);        // draws the live line
  void draw_pending();                 // draws the newest step if the live line shows an older one
  void print_above(std::string_view);  // prints complete lines and redraws the live line
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
  bool drawn_ = false;       // the cursor is behind a live line
  bool evaluating_ = false;  // the live line shows an evaluation
  bool silent_ = false;
};

}  // namespace starling
