#include "starling/telemetry/jsonl_sink.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "starling/base/error.h"
#include "starling/telemetry/to_json.h"
#include "starling/telemetry/unix_time.h"

namespace starling {

JsonlSink::JsonlSink(std::unique_ptr<Output> output, const Clock& clock, std::string name,
                     Nanoseconds max_delay, std::string run_id)
    : output_(std::move(output)),
      clock_(clock),
      name_(std::move(name)),
      max_delay_(max_delay),
      run_id_(std::move(run_id)),
      last_write_(clock.now()) {}

JsonlSink::~JsonlSink() {
  flush();
}

void JsonlSink::emit(const Event& event) {
  emit_at(event, unix_time_s());
}

void JsonlSink::emit_at(const Event& event, double time) {
  const std::string line = to_json(event, {time, run_id_});
  const std::lock_guard lock(mutex_);
  if (silent_) return;
  pending_ += line;
  pending_ += '\n';
  const bool step = std::holds_alternative<StepDone>(event);
  if (!step || pending_.size() >= 32 * 1024 || clock_.now() - last_write_ >= max_delay_) write_pending();
}

void JsonlSink::flush() {
  const std::lock_guard lock(mutex_);
  write_pending();
}

void JsonlSink::write_pending() {
  if (silent_ || pending_.empty()) return;
  if (!output_->write(pending_)) {
    const int error = errno;
    silent_ = true;
    std::fprintf(
        stderr,
        "starling: cannot write events to %s (%s)%s. No further events are written; training continues\n",
        name_.c_str(), std::strerror(error),
        error == ENOSPC || error == EDQUOT ? ": free space, or choose another folder with --run-dir" : "");
  }
  pending_.clear();
  last_write_ = clock_.now();
}

std::unique_ptr<EventSink> open_jsonl_file(const std::string& path, const Clock& clock,
                                           std::function<bool()> open, std::string run_id) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd.valid()) {
    throw ConfigError("run.dir", fmt::format("cannot write {}: {}. Choose another folder with --run-dir",
                                             path, std::strerror(errno)));
  }
  std::unique_ptr<Output> output = std::make_unique<FdOutput>(std::move(fd));
  if (open) output = std::make_unique<FencedOutput>(std::move(output), std::move(open));
  return std::make_unique<JsonlSink>(std::move(output), clock, path, std::chrono::milliseconds(200),
                                     std::move(run_id));
}

}  // namespace starling
