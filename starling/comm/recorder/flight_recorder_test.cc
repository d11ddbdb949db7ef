// Tests what a killed process leaves in its flight recorder, and what reports make of it.
#include "starling/comm/recorder/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "starling/base/error.h"
#include "starling/comm/recorder/flight_recorder_report.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Operation all_reduce(uint64_t sequence) {
  return {.kind = CollectiveKind::kAllReduce,
          .type = DataType::kFp32,
          .op = ReduceOp::kSum,
          .bytes = 4096,
          .sequence = sequence};
}

TEST(Recorder, KeepsTheLastOperations) {
  const TempDir folder;
  {
    FlightRecorder recorder(recorder_file(folder.path(), 3), 3, 4, "node-a");
    const int world = recorder.add_group("world"), other = recorder.add_group("stage 1");
    for (uint64_t i = 1; i <= kRecords + 10; ++i) {
      const uint64_t number = recorder.begin(i % 2 == 0 ? world : other, all_reduce(i));
      EXPECT_EQ(number, i);
      recorder.end(number, false);
    }
    recorder.begin(world, {.kind = CollectiveKind::kRecv, .bytes = 64}, 1, 7);
    recorder.begin_wait(world, 2, 5, 99);
  }
  const auto all = read_recordings(folder.path());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].rank, 3);
  EXPECT_EQ(all[0].size, 4);
  EXPECT_EQ(all[0].host, "node-a");
  EXPECT_THAT(all[0].groups, ElementsAre("world", "stage 1"));
  ASSERT_EQ(all[0].records.size(), kRecords);
  EXPECT_EQ(all[0].records.front().number, 13u);
  EXPECT_EQ(all[0].records[0].state, RecordState::kEnded);
  EXPECT_GE(all[0].records[0].ended_ns, all[0].records[0].began_ns);
  EXPECT_EQ(describe(all[0].records.back()), "a wait for rank 2 in shared memory (counter 5, value 99)");
  EXPECT_EQ(describe(all[0].records[kRecords - 2]), "recv of 64 bytes with tag 7 from rank 1");
  EXPECT_EQ(describe(all[0].records.front()), "all-reduce #13 (sum of 4096 bytes fp32)");
  EXPECT_THAT(
      who_waits(all).back(),
      HasSubstr("waits for rank 2 in shared memory (counter 5, value 99) of group world; it had waited 0.0"));
}

// A second start in a run folder must not truncate a file that a rank of the first one has mapped: the next
// store into the mapping would raise SIGBUS.
TEST(Recorder, ASecondOneLeavesTheMappedFileAsItIs) {
  const TempDir folder;
  const auto file = recorder_file(folder.path(), 0);
  FlightRecorder first(file, 0, 2, "node-a");
  first.begin(first.add_group("world"), all_reduce(1));
  std::filesystem::create_hard_link(file, folder.path() / "kept");
  const FlightRecorder second(file, 0, 2, "node-b");
  first.begin(0, all_reduce(2));
  EXPECT_FALSE(std::filesystem::equivalent(file, folder.path() / "kept"));
  std::filesystem::remove(file);
  const auto all = read_recordings(folder.path());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].host, "node-a");
  EXPECT_EQ(all[0].records.size(), 2u);
}

TEST(Recorder, SurvivesKill9) {
  const TempDir folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    FlightRecorder recorder(recorder_file(folder.path(), 0), 0, 2, "node-a");
    const int world = recorder.add_group("world");
    recorder.end(recorder.begin(world, all_reduce(1)), false);
    recorder.begin(world, all_reduce(2));
    const char done = 1;
    if (::write(ready[1], &done, 1) != 1) _exit(1);
    for (;;) ::pause();
  }
  char done = 0;
  ASSERT_EQ(::read(ready[0], &done, 1), 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  const auto all = read_recordings(folder.path());
  ASSERT_EQ(all.size(), 1u);
  ASSERT_EQ(all[0].records.size(), 2u);
  EXPECT_EQ(all[0].records[0].state, RecordState::kEnded);
  EXPECT_EQ(all[0].records[1].state, RecordState::kUnderWay);
}

TEST(Recorder, SaysWhoWaitsForWhom) {
  const TempDir folder;
  for (int rank = 0; rank < 3; ++rank) {
    FlightRecorder recorder(recorder_file(folder.path(), rank), rank, 3, "node-a");
    const int world = recorder.add_group("world");
    recorder.end(recorder.begin(world, all_reduce(1)), false);
    if (rank == 1) continue;  // this rank never arrives
    const uint64_t number = recorder.begin(world, all_reduce(2));
    if (rank == 2) recorder.end(number, true);
  }
  const auto lines = who_waits(read_recordings(folder.path()));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], HasSubstr("rank 0 (node-a) waits in all-reduce #2 (sum of 4096 bytes fp32)"));
  EXPECT_THAT(lines[1], HasSubstr("rank 1 (node-a) did not begin #2 of group world; its last operation was "
                                  "all-reduce #1 (sum of 4096 bytes fp32), which ended 0."));
  EXPECT_THAT(lines[2],
              HasSubstr("rank 2 (node-a) stopped waiting in all-reduce #2 (sum of 4096 bytes fp32) of group "
                        "world after 0."));
  const std::string report = recorder_report(read_recordings(folder.path()), 5);
  EXPECT_THAT(report, HasSubstr("Who waits for whom"));
  EXPECT_THAT(report, HasSubstr("rank 1 (node-a) of 3"));
}

TEST(Recorder, NobodyWaitsWhereAllIsDone) {
  const TempDir folder;
  for (int rank = 0; rank < 2; ++rank) {
    FlightRecorder recorder(recorder_file(folder.path(), rank), rank, 2, "node-a");
    recorder.end(recorder.begin(recorder.add_group("world"), all_reduce(1)), false);
  }
  EXPECT_THAT(who_waits(read_recordings(folder.path())), IsEmpty());
}

TEST(Recorder, ADamagedFileGivesAReportWithoutMeaning) {
  const TempDir folder;
  std::vector<std::byte> file;
  {
    FlightRecorder recorder(recorder_file(folder.path(), 0), 0, 2, "node-a");
    recorder.begin(recorder.add_group("world"), all_reduce(1));
  }
  const std::string text = read_bytes(recorder_file(folder.path(), 0));
  for (const char c : text) file.push_back(static_cast<std::byte>(c));
  ASSERT_TRUE(parse_recording(file));
  auto* header = reinterpret_cast<RecorderHeader*>(file.data());
  auto* record = reinterpret_cast<Record*>(file.data() + sizeof(RecorderHeader)) + 1;
  header->steady_ns = INT64_MIN;
  header->wall_ns = INT64_MAX;
  record->began_ns = INT64_MIN;
  record->ended_ns = INT64_MAX;
  const auto damaged = parse_recording(file);
  ASSERT_TRUE(damaged);
  ASSERT_EQ(damaged->records.size(), 1u);
  EXPECT_THAT(recorder_report({*damaged}, 5), HasSubstr("all-reduce #1"));
  record->kind = static_cast<CollectiveKind>(200);
  EXPECT_THAT(parse_recording(file)->records, IsEmpty());
  file.pop_back();
  EXPECT_FALSE(parse_recording(file));
}

TEST(Recorder, OtherFilesAreLeftOut) {
  const TempDir folder;
  std::ofstream(folder.file("rank-7")) << "not a recording";
  EXPECT_THAT(read_recordings(folder.path()), IsEmpty());
  EXPECT_THAT(read_recordings(folder.path() / "absent"), IsEmpty());
  EXPECT_THROW(FlightRecorder("/proc/no/such/rank-0", 0, 1, "x"), Error);
}

}  // namespace
}  // namespace starling
