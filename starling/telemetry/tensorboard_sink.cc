#include "starling/telemetry/tensorboard_sink.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/unix_time.h"

namespace starling {
namespace {

constexpr size_t kBufferBytes = 32 * 1024;
constexpr Nanoseconds kMaxDelay = std::chrono::seconds(1);

// The fields of the messages Event, Summary and Summary.Value.
enum EventField { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
enum SummaryField { kValue = 1 };
enum ValueField { kTag = 1, kSimpleValue = 2 };
// Wire types of protocol buffers.
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

// TFRecord masks checksums, because the checksum of data that contain checksums is weak.
uint32_t masked(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

// Appends the lowest `count` bytes of `value`, the least significant first.
void put_bytes(std::string& out, uint64_t value, int count) {
  for (int i = 0; i < count; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7F) | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_key(std::string& out, int field, WireType type) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
}

void put_text(std::string& out, int field, std::string_view text) {
  put_key(out, field, kBytes);
  put_varint(out, text.size());
  out += text;
}

void put_wall_time(std::string& out, double time) {
  put_key(out, kWallTime, kFixed64);
  put_bytes(out, std::bit_cast<uint64_t>(time), 8);
}

std::string version_event(double time) {
  std::string event;
  put_wall_time(event, time);
  put_text(event, kFileVersion, "brain.Event:2");
  return event;
}

using Scalars = std::vector<std::pair<std::string, double>>;

Scalars scalars_of(const StepDone& e) {
  return {{"train/loss", e.loss},
          {"train/lr", e.lr},
          {"train/epoch", e.epoch},
          {"train/samples_per_s", e.samples_per_s},
          {"time/step_s", e.step_s},
          {"time/compute_s", e.compute_s},
          {"time/exposed_comm_s", e.exposed_comm_s},
          {"time/data_wait_s", e.data_wait_s}};
}

Scalars scalars_of(const EvalDone& e) {
  Scalars scalars = {{"test/loss", e.loss}};
  if (e.accuracy >= 0) scalars.emplace_back("test/accuracy", e.accuracy);
  for (const auto& [name, value] : e.metrics) scalars.emplace_back("test/" + name, value);
  return scalars;
}

Scalars scalars_of(const CheckpointDone& e) {
  if (!e.error.empty()) return {};
  return {{"time/checkpoint_s", e.seconds}};
}

class TensorBoardSink final : public EventSink {
 public:
  TensorBoardSink(std::unique_ptr<Output> output, std::string path, const Clock& clock)
      : output_(std::move(output)), path_(std::move(path)), clock_(clock), last_write_(clock.now()) {
    pending_ = tf_record(version_event(unix_time_s()));
    write_pending();
  }
  ~TensorBoardSink() override { flush(); }

  void emit(const Event& event) override { emit_at(event, unix_time_s()); }
  void emit_at(const Event& event, double time) override {
    if (const auto* step = std::get_if<StepDone>(&event)) {
      add(time, step->step, scalars_of(*step), false);
    } else if (const auto* eval = std::get_if<EvalDone>(&event)) {
      add(time, eval->step, scalars_of(*eval), true);
    } else if (const auto* checkpoint = std::get_if<CheckpointDone>(&event)) {
      add(time, checkpoint->step, scalars_of(*checkpoint), true);
    }
  }
  void flush() override {
    const std::lock_guard lock(mutex_);
    write_pending();
  }

 private:
  void add(double time, int64_t step, const Scalars& scalars, bool at_once) {
    if (scalars.empty()) return;
    const std::string record = tf_record(scalars_event(time, step, scalars));
    const std::lock_guard lock(mutex_);
    if (silent_) return;
    pending_ += record;
    if (at_once || pending_.size() >= kBufferBytes || clock_.now() - last_write_ >= kMaxDelay)
      write_pending();
  }

  void write_pending() {
    if (silent_ || pending_.empty()) return;
    if (!output_->write(pending_)) {
      const int error = errno;
      silent_ = true;
      std::fprintf(stderr,
                   "starling: cannot write events to %s (%s): free space, or choose another folder with "
                   "--run-dir. No further events of TensorBoard are written; training continues\n",
                   path_.c_str(), std::strerror(error));
    }
    pending_.clear();
    last_write_ = clock_.now();
  }

  std::mutex mutex_;
  std::unique_ptr<Output> output_;
  const std::string path_;
  const Clock& clock_;
  Nanoseconds last_write_;
  std::string pending_;
  bool silent_ = false;
};

// Opens a new file. TensorBoard recognizes event files by "tfevents" in their names.
UniqueFd open_new_file(const std::string& folder, std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  const auto now = static_cast<int64_t>(unix_time_s());
  for (int i = 0; !error; ++i) {
    path = fmt::format("{}/events.out.tfevents.{}.{}.{}.{}", folder, now, host, ::getpid(), i);
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd.valid()) return fd;
    if (errno != EEXIST) error = {errno, std::generic_category()};
  }
  throw ConfigError(
      "run.tensorboard",
      fmt::format("no file can be made in {}: {}. Choose another folder with --run-dir, or leave "
                  "out --tensorboard",
                  folder, error.message()));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

std::string tf_record(std::string_view bytes) {
  std::string record;
  record.reserve(bytes.size() + 16);
  put_bytes(record, bytes.size(), 8);
  put_bytes(record, masked(crc32c(record)), 4);
  record += bytes;
  put_bytes(record, masked(crc32c(bytes)), 4);
  return record;
}

std::string scalars_event(double time, int64_t step,
                          std::span<const std::pair<std::string, double>> scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_text(value, kTag, tag);
    put_key(value, kSimpleValue, kFixed32);
    put_bytes(value, std::bit_cast<uint32_t>(static_cast<float>(number)), 4);
    put_text(summary, kValue, value);
  }
  std::string event;
  put_wall_time(event, time);
  put_key(event, kStep, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  put_text(event, kSummary, summary);
  return event;
}

std::unique_ptr<EventSink> open_tensorboard_sink(const std::string& folder, const Clock& clock,
                                                 std::function<bool()> open) {
  std::string path;
  std::unique_ptr<Output> output = std::make_unique<FdOutput>(open_new_file(folder, path));
  if (open) output = std::make_unique<FencedOutput>(std::move(output), std::move(open));
  return std::make_unique<TensorBoardSink>(std::move(output), path, clock);
}

}  // namespace starling
