#include "starling/telemetry/jsonl_sink.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "starling/base/error.h"
#include "starling/telemetry/to_json.h"

namespace starling {

JsonlSink::JsonlSink(std::unique_ptr<Output> output, const Clock& clock, std::string name,
                     Nanoseconds max_delay)
    : output_(std::move(output)),
      clock_(clock),
      name_(std::move(name)),
      max_delay_(max_delay),
      last_write_(clock.now()) {}

JsonlSink::~JsonlSink() {
  flush();
}

void JsonlSink::emit(const Event& event) {
  const std::string line = to_json(event);
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
    silent_ = true;
    std::fprintf(stderr, "starling: cannot write events to %s (%s); it ends here, training goes on\n",
                 name_.c_str(), std::strerror(errno));
  }
  pending_.clear();
  last_write_ = clock_.now();
}

std::unique_ptr<EventSink> open_jsonl_file(const std::string& path, const Clock& clock) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd.valid()) {
    throw ConfigError("run.dir", fmt::format("cannot write {}: {}; choose another folder with --run-dir",
                                             path, std::strerror(errno)));
  }
  return std::make_unique<JsonlSink>(std::make_unique<FdOutput>(std::move(fd)), clock, path);
}

}  // namespace starling
