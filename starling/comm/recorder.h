// The flight recorder: a rank's last kRecords operations, in memory that a file of the run folder maps, so that it outlives the
// process however it ends (kill -9 included; a crash of the machine excepted).
//
// The file: RecorderHeader, then kRecords times Record, in the byte order of the machine. Operation k, counted from 1, is in place
// k % kRecords. A record under way when the process ended is one with ended_ns = 0.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "starling/comm/operation.h"

namespace starling {

constexpr size_t kRecords = 4096;
constexpr size_t kRecordedGroups = 64;

enum class RecordState : uint8_t { kNone, kUnderWay, kEnded, kFailed };

struct Record {
  uint64_t number = 0;    // 1 for the first of this rank; stored last
  uint64_t sequence = 0;  // in its group; 0 for send and recv
  uint64_t bytes = 0;
  int64_t began_ns = 0;  // steady clock of the host
  int64_t ended_ns = 0;
  int32_t peer = -1;  // root of a broadcast, other end of a send or recv: rank in the group
  uint32_t tag = 0;   // of send and recv
  uint16_t group = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  RecordState state = RecordState::kNone;
  uint8_t in_memory =
      0;  // 1: a wait for a number that `peer` posts in slot `tag` (local_sync.h), at least `bytes`
  uint8_t unused[9] = {};
};
static_assert(sizeof(Record) == 64);

struct RecorderHeader {
  char magic[8];  // "STLREC01"
  int32_t rank;   // in the job
  int32_t size;   // ranks of the job
  int32_t pid;
  int32_t groups;     // names that are there
  uint64_t next;      // operations begun so far
  int64_t steady_ns;  // one moment on the steady clock …
  int64_t wall_ns;    // … and on the wall's
  char host[80];
  char names[kRecordedGroups][64];
};

// Thread-safe.
class FlightRecorder {
 public:
  // Makes the file, or empties it. Error(internal) naming it where that is impossible.
  FlightRecorder(const std::filesystem::path& file, int rank, int size, const std::string& host);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // The number under which `begin` knows the group; the last one stands for all beyond kRecordedGroups.
  int add_group(const std::string& name);
  // An operation begins; the number that `end` wants.
  uint64_t begin(int group, const Operation& operation, int peer = -1, uint32_t tag = 0);
  // A wait of LocalSync for a number of rank `peer` begins.
  uint64_t begin_wait(int group, int peer, int slot, uint64_t value);
  void end(uint64_t number, bool failed);

 private:
  uint64_t write(Record record);
  RecorderHeader& header() const { return *static_cast<RecorderHeader*>(map_); }
  Record& place(uint64_t number) const;

  void* map_ = nullptr;
  std::atomic<uint64_t> next_{0};
  std::mutex mutex_;
};

// The entry of one operation, which lasts as long as this: it has failed if an exception ends it.
class RecordedOperation {
 public:
  // Nothing where there is no recorder (null), or where the group has not been added to it (-1).
  RecordedOperation(FlightRecorder* recorder, int group, const Operation& operation, int peer = -1,
                    uint32_t tag = 0);
  // One that has begun as `number`.
  RecordedOperation(FlightRecorder& recorder, uint64_t number);
  ~RecordedOperation();
  RecordedOperation(const RecordedOperation&) = delete;

 private:
  FlightRecorder* const recorder_;
  const int exceptions_;
  uint64_t number_ = 0;
};

// What a file holds.
struct Recording {
  int rank = 0;
  int size = 0;
  int pid = 0;
  std::string host;
  std::vector<std::string> groups;
  std::vector<Record> records;  // oldest first; times in nanoseconds of the wall clock
};

// `folder`/rank-N for a rank's recorder.
std::filesystem::path recorder_file(const std::filesystem::path& folder, int rank);
// All recordings in `folder`, by rank; files that are none are left out. Empty where there is no such folder.
std::vector<Recording> read_recordings(const std::filesystem::path& folder);

}  // namespace starling
