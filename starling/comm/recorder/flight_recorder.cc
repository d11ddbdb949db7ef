#include "starling/comm/recorder/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <fstream>
#include <optional>
#include <system_error>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"

namespace starling {
namespace {

constexpr char kMagic[9] = "STLREC01";
constexpr size_t kFileBytes = sizeof(RecorderHeader) + kRecords * sizeof(Record);

int64_t steady_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t wall_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <size_t n>
void copy_text(char (&to)[n], const std::string& from) {
  const size_t length = std::min(from.size(), n - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

// Throws the error of a file that cannot be made. The file is removed.
[[noreturn]] void refuse_file(const std::filesystem::path& file, int error) {
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error(ErrorCode::kInternal,
              fmt::format("flight recorder {}: {}; {}give another folder by --run-dir",
                          file.parent_path().string(), std::generic_category().message(error),
                          full ? fmt::format("free {} KB for each rank, or ", kFileBytes / 1024 + 1) : ""));
}

// Gives every page of the file its block on the disk. Without the block, a store into the mapping raises
// SIGBUS if the disk is full. If the file system has no fallocate, posix_fallocate writes into each block.
// Returns the error number, or 0.
int allocate_blocks(int fd) {
  int error = 0;
  do {
    error = ::posix_fallocate(fd, 0, static_cast<off_t>(kFileBytes));
  } while (error == EINTR);
  return error;
}

void* map_new_file(const std::filesystem::path& file) {
  std::error_code made;
  std::filesystem::create_directories(file.parent_path(), made);
  if (made) refuse_file(file, made.value());
  // An earlier file may be mapped by a rank of another start in this folder. The rank keeps it without a
  // name, because a store into the mapping of a truncated file raises SIGBUS.
  ::unlink(file.c_str());
  const UniqueFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) refuse_file(file, errno);
  if (const int error = allocate_blocks(fd.get()); error != 0) refuse_file(file, error);
  void* map = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (map == MAP_FAILED) refuse_file(file, errno);
  return map;
}

template <size_t n>
std::string text_of(const char (&from)[n]) {
  return {from, ::strnlen(from, n)};
}

}  // namespace

FlightRecorder::FlightRecorder(const std::filesystem::path& file, int rank, int size,
                               const std::string& host) {
  map_ = map_new_file(file);
  RecorderHeader& h = header();
  h.rank = rank;
  h.size = size;
  h.pid = ::getpid();
  h.steady_ns = steady_ns();
  h.wall_ns = wall_ns();
  copy_text(h.host, host);
  std::memcpy(h.magic, kMagic, sizeof(h.magic));
}

FlightRecorder::~FlightRecorder() {
  ::munmap(map_, kFileBytes);
}

Record& FlightRecorder::place(uint64_t number) const {
  auto* records = reinterpret_cast<Record*>(static_cast<std::byte*>(map_) + sizeof(RecorderHeader));
  return records[number % kRecords];
}

int FlightRecorder::add_group(const std::string& name) {
  const std::lock_guard lock(mutex_);
  RecorderHeader& h = header();
  const int index = std::min<int>(h.groups, kRecordedGroups - 1);
  copy_text(h.names[index], h.groups == index ? name : "others");
  h.groups = index + 1;
  return index;
}

uint64_t FlightRecorder::write(Record record) {
  const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed) + 1;
  record.began_ns = steady_ns();
  record.state = RecordState::kUnderWay;
  // The process may be killed between any two of these stores. The kernel keeps what has been stored, in this
  // order.
  Record& to = place(number);
  to.number = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  to = record;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  to.number = number;
  return number;
}

uint64_t FlightRecorder::begin(int group, const Operation& operation, int peer, uint32_t tag) {
  Record record;
  record.sequence = operation.sequence;
  record.bytes = operation.bytes;
  record.peer = operation.kind == CollectiveKind::kBroadcast ? operation.root : peer;
  record.tag = tag;
  record.group = static_cast<uint16_t>(group);
  record.kind = operation.kind;
  record.type = operation.type;
  record.op = operation.op;
  return write(record);
}

uint64_t FlightRecorder::begin_wait(int group, int peer, int counter, uint64_t value) {
  Record record;
  record.bytes = value;
  record.peer = peer;
  record.tag = static_cast<uint32_t>(counter);
  record.group = static_cast<uint16_t>(group);
  record.kind = CollectiveKind::kRecv;
  record.in_memory = 1;
  return write(record);
}

void FlightRecorder::end(uint64_t number, bool failed) {
  Record& record = place(number);
  if (record.number != number) return;  // kRecords later operations have begun, and one uses this place
  record.ended_ns = steady_ns();
  record.state = failed ? RecordState::kFailed : RecordState::kEnded;
}

RecordedOperation::RecordedOperation(FlightRecorder* recorder, int group, const Operation& operation,
                                     int peer, uint32_t tag)
    : recorder_(group >= 0 ? recorder : nullptr), exceptions_(std::uncaught_exceptions()) {
  if (recorder_ != nullptr) number_ = recorder_->begin(group, operation, peer, tag);
}

RecordedOperation::RecordedOperation(FlightRecorder& recorder, uint64_t number)
    : recorder_(&recorder), exceptions_(std::uncaught_exceptions()), number_(number) {}

RecordedOperation::~RecordedOperation() {
  if (recorder_ != nullptr) recorder_->end(number_, std::uncaught_exceptions() > exceptions_);
}

std::filesystem::path recorder_file(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("rank-{}", rank);
}

int64_t time_between(int64_t from, int64_t to) {
  return static_cast<int64_t>(static_cast<uint64_t>(to) - static_cast<uint64_t>(from));
}

namespace {

// Returns a + b, or a number without meaning if the sum is too large for the type.
int64_t sum_of_times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

std::optional<Recording> read_recording(const std::filesystem::path& path) {
  std::vector<std::byte> bytes(kFileBytes);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(kFileBytes)))
    return std::nullopt;
  return parse_recording(bytes);
}

}  // namespace

std::optional<Recording> parse_recording(std::span<const std::byte> file) {
  if (file.size() < kFileBytes || std::memcmp(file.data(), kMagic, sizeof(kMagic) - 1) != 0)
    return std::nullopt;
  RecorderHeader header;
  std::memcpy(&header, file.data(), sizeof(header));
  const int64_t to_wall = time_between(header.steady_ns, header.wall_ns);
  Recording out{header.rank, header.size, header.pid, text_of(header.host), {}, {}};
  for (int i = 0; i < std::clamp<int>(header.groups, 0, kRecordedGroups); ++i)
    out.groups.push_back(text_of(header.names[i]));
  for (size_t place = 0; place < kRecords; ++place) {
    const std::byte* at = file.data() + sizeof(header) + place * sizeof(Record);
    decltype(Record::number) number = 0;
    std::memcpy(&number, at + offsetof(Record, number), sizeof(number));
    if (number == 0) continue;
    Record record;
    std::memcpy(&record, at, sizeof(record));
    const bool known = record.state <= RecordState::kFailed && record.kind <= CollectiveKind::kRecv &&
                       record.type <= DataType::kInt64 && record.op <= ReduceOp::kBitXor &&
                       record.group < out.groups.size();
    if (!known) continue;
    record.began_ns = sum_of_times(record.began_ns, to_wall);
    if (record.ended_ns != 0) record.ended_ns = sum_of_times(record.ended_ns, to_wall);
    out.records.push_back(record);
  }
  std::sort(out.records.begin(), out.records.end(),
            [](const Record& a, const Record& b) { return a.number < b.number; });
  return out;
}

std::vector<Recording> read_recordings(const std::filesystem::path& folder) {
  std::vector<Recording> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error)) continue;
    if (auto recording = read_recording(entry.path())) all.push_back(std::move(*recording));
  }
  std::sort(all.begin(), all.end(), [](const Recording& a, const Recording& b) { return a.rank < b.rank; });
  return all;
}

}  // namespace starling
