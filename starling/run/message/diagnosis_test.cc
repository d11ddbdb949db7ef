#include "starling/run/message/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/comm/recorder/flight_recorder_report.h"
#include "starling/net/address.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Writes the recording of a rank that has ended its all-reduces before `last`. The rank waits in `last` or
// has ended it too.
void record(const std::filesystem::path& folder, int rank, const std::string& host, uint64_t last,
            bool waits) {
  FlightRecorder recorder(recorder_file(folder, rank), rank, 4, host);
  const int world = recorder.add_group("world");
  for (uint64_t sequence = 1; sequence <= last; ++sequence) {
    const uint64_t number = recorder.begin(
        world,
        {.kind = CollectiveKind::kAllReduce, .type = DataType::kFp32, .bytes = 4, .sequence = sequence});
    if (sequence < last || !waits) recorder.end(number, false);
  }
}

// Rank 1 is late. What ranks 2 and 3 wrote after #5 has not arrived on this host.
TEST(Diagnosis, LeavesOutTheRanksOfOtherHosts) {
  const TempDir folder;
  record(folder.path(), 0, "node-a", 8, true);
  record(folder.path(), 1, "node-a", 7, false);
  record(folder.path(), 2, "node-b", 5, false);
  record(folder.path(), 3, "node-b", 5, true);
  const auto all = read_recordings(folder.path());
  ASSERT_THAT(who_waits(all), testing::Contains(HasSubstr("rank 3 (node-b) did not begin #8")));
  EXPECT_THAT(who_waits_on("node-a", all), ElementsAre(HasSubstr("rank 0 (node-a) waits in all-reduce #8"),
                                                       HasSubstr("rank 1 (node-a) did not begin #8"),
                                                       AllOf(HasSubstr("2 ranks of other hosts left out"),
                                                             HasSubstr("starling doctor --recorder"))));
  // All ranks are on other hosts.
  EXPECT_THAT(who_waits_on("node-c", all), ElementsAre(HasSubstr("4 ranks of other hosts left out")));
}

TEST(Diagnosis, SaysNothingWhereNobodyWaits) {
  const TempDir folder;
  EXPECT_THAT(who_waits_here(folder.path()), IsEmpty());
  record(folder.path(), 0, host_name(), 8, false);
  record(folder.path(), 1, "of-another-host", 5, false);
  EXPECT_THAT(who_waits_here(folder.path()), IsEmpty());
}

TEST(Diagnosis, SaysWhereOthersMayWait) {
  const TempDir folder;
  record(folder.path(), 0, "node-a", 7, false);
  record(folder.path(), 1, "node-b", 8, true);
  EXPECT_THAT(who_waits_on("node-a", read_recordings(folder.path())),
              ElementsAre(HasSubstr("1 rank of other hosts left out")));
}

TEST(Diagnosis, KnowsTheRanksOfThisHost) {
  const TempDir folder;
  record(folder.path(), 0, host_name(), 8, true);
  record(folder.path(), 1, host_name(), 7, false);
  EXPECT_THAT(who_waits_here(folder.path()),
              ElementsAre(HasSubstr("waits in all-reduce #8"), HasSubstr("did not begin #8")));
}

}  // namespace
}  // namespace starling
