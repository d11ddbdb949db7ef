// The flight recorder: a rank's last kRecords operations, in a file that outlives the process.
//
// The process maps the file, so the file is complete even if the process is killed (kill -9). It may be lost
// if the machine crashes. The file consists of a RecorderHeader and kRecords Records, in the byte order of
// the machine. Operation k, counted from 1, is in place k % kRecords. A Record with ended_ns = 0 was under
// way when the process ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starling/comm/operation.h"

namespace starling {

constexpr size_t kRecords = 4096;       // operations that are kept
constexpr size_t kRecordedGroups = 64;  // groups whose names are kept

// RecordState is the state of an operation. kNone marks a place that was never used.
enum class RecordState : uint8_t { kNone, kUnderWay, kEnded, kFailed };

// Record is one operation of this rank.
struct Record {
  uint64_t number = 0;    // 1 for this rank's first operation; stored last
  uint64_t sequence = 0;  // the collective's number in its group; 0 for send, recv and waits of LocalSync
  uint64_t bytes = 0;
  int64_t began_ns = 0;  // by the host's steady clock
  int64_t ended_ns = 0;
  int32_t peer = -1;  // a rank in the group: root of a broadcast, other end of a message, or awaited rank
  uint32_t tag = 0;   // of a send or recv
  uint16_t group = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  RecordState state = RecordState::kNone;
  // 1: the operation is a wait of LocalSync (comm/host/local_sync.h): for counter `tag` of `peer` to reach
  // `bytes`.
  uint8_t in_memory = 0;
  uint8_t unused[9] = {};
};
static_assert(sizeof(Record) == 64);

// RecorderHeader is the head of the file.
struct RecorderHeader {
  char magic[8];  // "STLREC01"
  int32_t rank;   // in the job
  int32_t size;   // ranks in the job
  int32_t pid;
  int32_t groups;     // how many names are valid
  uint64_t next;      // not used; 0
  int64_t steady_ns;  // one moment by the steady clock
  int64_t wall_ns;    // the same moment by the wall clock
  char host[80];
  char names[kRecordedGroups][64];
};

// FlightRecorder writes the file. It is thread-safe.
class FlightRecorder {
 public:
  // Creates the file and its folder, or empties the file. Allocates all blocks of the file, so that a disk
  // that becomes full later cannot end the process. A file system that copies on write (Btrfs, ZFS) does not
  // reserve the blocks for good. `rank` and `size` are those of the job.
  // Errors: Error(kInternal) that names the folder and the remedy, for example if the disk is full. The file
  // is then removed.
  FlightRecorder(const std::filesystem::path& file, int rank, int size, const std::string& host);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Returns the number of a group for begin(). If there are more than kRecordedGroups groups, the last number
  // stands for all groups from the kRecordedGroups-th on, whose name is "others".
  int add_group(const std::string& name);
  // Records that an operation begins. Returns its number for end().
  uint64_t begin(int group, const Operation& operation, int peer = -1, uint32_t tag = 0);
  // Records that this rank begins to wait for counter `counter` of rank `peer` to reach `value` (LocalSync).
  // Returns the number of the wait for end().
  uint64_t begin_wait(int group, int peer, int counter, uint64_t value);
  // Records that the operation has ended. Does nothing if a later operation uses its place.
  void end(uint64_t number, bool failed);

 private:
  uint64_t write(Record record);
  RecorderHeader& header() const { return *static_cast<RecorderHeader*>(map_); }
  Record& place(uint64_t number) const;

  void* map_ = nullptr;
  std::atomic<uint64_t> next_{0};
  std::mutex mutex_;
};

// RecordedOperation records one operation. Its constructor begins the operation, its destructor ends it.
// The operation has failed if an exception ends the scope.
class RecordedOperation {
 public:
  // Records nothing if `recorder` is null or if `group` is -1.
  RecordedOperation(FlightRecorder* recorder, int group, const Operation& operation, int peer = -1,
                    uint32_t tag = 0);
  // Ends an operation that begin() or begin_wait() has numbered.
  RecordedOperation(FlightRecorder& recorder, uint64_t number);
  ~RecordedOperation();
  RecordedOperation(const RecordedOperation&) = delete;

 private:
  FlightRecorder* const recorder_;
  const int exceptions_;
  uint64_t number_ = 0;
};

// Recording is the contents of one file.
struct Recording {
  int rank = 0;
  int size = 0;
  int pid = 0;
  std::string host;
  std::vector<std::string> groups;
  std::vector<Record> records;  // the oldest first; times in nanoseconds by the wall clock
};

// Returns the file of a rank's recorder: `folder`/rank-N.
std::filesystem::path recorder_file(const std::filesystem::path& folder, int rank);
// Returns to - from, in nanoseconds. If the result is too large for the type, the returned number has no
// meaning. This may happen because a damaged file may hold any times.
int64_t time_between(int64_t from, int64_t to);

// Returns the recording that the bytes of a file hold. Returns nothing if they are no recording. Bytes of a
// damaged file may give a recording with false records, but every record has a valid kind, type and group.
std::optional<Recording> parse_recording(std::span<const std::byte> file);
// Returns all recordings in `folder`, by rank. It leaves out files that are not recordings. Without the
// folder it returns nothing.
std::vector<Recording> read_recordings(const std::filesystem::path& folder);

}  // namespace starling
