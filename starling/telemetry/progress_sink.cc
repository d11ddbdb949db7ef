#include "starling/telemetry/progress_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "starling/telemetry/summary.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr Nanoseconds kRedraw = std::chrono::milliseconds(100);
constexpr Nanoseconds kPlain = std::chrono::seconds(2);
constexpr const char* kErase = "\r\x1b[K";

}  // namespace

ProgressSink::ProgressSink(std::unique_ptr<Output> output, const Clock& clock, const ProgressOptions& options)
    : output_(std::move(output)),
      clock_(clock),
      options_(options),
      started_(clock.now()),
      last_drawn_(started_) {
  scale_.color = options.color;
  scale_.verbose = options.verbosity == Verbosity::kVerbose;
}

ProgressSink::~ProgressSink() {
  const std::lock_guard lock(mutex_);
  draw_pending();
  if (drawn_) write("\n");
}

void ProgressSink::emit(const Event& event) {
  const std::lock_guard lock(mutex_);
  std::visit([this](const auto& e) { show(e); }, event);
}

void ProgressSink::show_progress(const EvalProgress& progress) {
  const std::lock_guard lock(mutex_);
  if (!options_.terminal || options_.verbosity == Verbosity::kQuiet || progress.of <= 0) return;
  if (evaluating_ && clock_.now() - last_drawn_ < kRedraw && progress.samples < progress.of) return;
  const std::string text = fmt::format("testing at step {}  {} %  {}/{} samples",
                                       with_thousands(progress.step), 100 * progress.samples / progress.of,
                                       with_thousands(progress.samples), with_thousands(progress.of));
  const int columns = output_->columns();
  write(fmt::format("{}{}", kErase, cut(text, columns > 0 ? columns - 1 : 79)));
  drawn_ = evaluating_ = true;
  last_drawn_ = clock_.now();
}

void ProgressSink::flush() {
  const std::lock_guard lock(mutex_);
  if (!evaluating_) draw_pending();
}

void ProgressSink::write(const std::string& text) {
  if (silent_ || output_->write(text)) return;
  silent_ = true;
  std::fprintf(stderr, "starling: cannot write the progress line (%s). Training continues\n",
               std::strerror(errno));
}

void ProgressSink::print_above(std::string_view text) {
  std::string all = drawn_ ? kErase : "";
  all += text;
  const bool again = drawn_ && last_;
  drawn_ = evaluating_ = false;
  write(all);
  if (again) draw(*last_);
}

void ProgressSink::draw(const StepDone& e) {
  const int columns = output_->columns();
  // One column stays empty because a full line would wrap at the next character.
  write(fmt::format("{}{}", kErase, progress_line(e, scale_, columns > 0 ? columns - 1 : 79)));
  drawn_ = true;
  last_drawn_ = clock_.now();
  last_drawn_step_ = e.step;
  evaluating_ = false;
}

void ProgressSink::draw_pending() {
  const bool behind = evaluating_ || (last_ && last_->step != last_drawn_step_);
  if (options_.terminal && drawn_ && last_ && behind) draw(*last_);
}

bool ProgressSink::plain_line_due(const StepDone& e) {
  if (last_drawn_step_ < 0 || e.step == scale_.total_steps) return true;
  const Nanoseconds now = clock_.now();
  if (now - last_drawn_ >= std::max(kPlain, (now - started_) / 20)) return true;
  const auto tenth = [this](int64_t step) { return 10 * step / scale_.total_steps; };
  // If a run takes milliseconds, not every tenth of it gets a line.
  return scale_.total_steps > 0 && tenth(e.step) != tenth(last_drawn_step_) &&
         now - last_drawn_ >= kPlain / 4;
}

void ProgressSink::show(const RunStarted& e) {
  scale_.total_steps = e.total_steps;
  scale_.ranks = e.ranks;
  if (options_.verbosity == Verbosity::kQuiet) return;
  const std::string data = e.data.empty() ? "" : " on " + e.data;
  std::string text =
      fmt::format("{}{}: {} x {}, global batch {}, {} parameters\n",
                  paint(options_.color, Color::kBold, e.model), data, ranks_text(e.ranks),
                  counted(e.threads, "thread"), with_thousands(e.global_batch), with_thousands(e.params));
  if (e.first_step > 0) text += fmt::format("resumed at step {}\n", with_thousands(e.first_step));
  if (!e.run_dir.empty()) text += fmt::format("run folder {}\n", e.run_dir);
  if (scale_.verbose) {
    for (const auto& [key, value] : e.choices) text += fmt::format("chosen: {} = {}\n", key, value);
  }
  print_above(text);
}

void ProgressSink::show(const StepDone& e) {
  last_ = e;
  if (options_.verbosity == Verbosity::kQuiet) return;
  if (options_.terminal) {
    if (!drawn_ || clock_.now() - last_drawn_ >= kRedraw || e.step == scale_.total_steps) draw(e);
  } else if (plain_line_due(e)) {
    write(progress_line(e, scale_, 0) + "\n");
    last_drawn_ = clock_.now();
    last_drawn_step_ = e.step;
  }
}

void ProgressSink::show(const EvalDone& e) {
  if (options_.verbosity == Verbosity::kQuiet) return;
  std::string text = fmt::format("test at step {}: ", with_thousands(e.step));
  if (e.accuracy >= 0) {
    text += paint(options_.color, Color::kGreen, fmt::format("accuracy {:.2f} %", 100 * e.accuracy)) + ", ";
  }
  for (const auto& [name, value] : e.metrics) text += fmt::format("{} {}, ", name, significant(value));
  text += fmt::format("loss {} on {} samples\n", significant(e.loss), with_thousands(e.samples));
  print_above(text);
}

void ProgressSink::show(const CheckpointDone& e) {
  if (!e.error.empty()) {
    return show(Message{Severity::kWarning, -1,
                        fmt::format("checkpoint of step {} was not written: {}. Training continues and the "
                                    "previous checkpoint is kept",
                                    e.step, e.error)});
  }
  if (options_.verbosity == Verbosity::kQuiet) return;
  print_above(
      fmt::format("checkpoint of step {} in {} ({})\n", with_thousands(e.step), e.path, duration(e.seconds)));
}

void ProgressSink::show(const Message& e) {
  const Severity least = options_.verbosity == Verbosity::kQuiet     ? Severity::kError
                         : options_.verbosity == Verbosity::kVerbose ? Severity::kDebug
                                                                     : Severity::kInfo;
  if (e.severity < least) return;
  std::string text;
  if (e.severity == Severity::kWarning) text += paint(options_.color, Color::kYellow, "warning: ");
  if (e.severity == Severity::kError) text += paint(options_.color, Color::kRed, "error: ");
  if (e.rank > 0) text += fmt::format("rank {}: ", e.rank);
  print_above(text + printable(e.text) + "\n");
}

void ProgressSink::show(const RanksLost& e) {
  show(Message{Severity::kWarning, -1, text_of(e)});
}

void ProgressSink::show(const RunResult& e) {
  draw_pending();
  std::string text = drawn_ ? "\n" : "";
  drawn_ = false;
  write(text + summary(e, options_.color));
}

}  // namespace starling
