#include "starling/launch/fault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <climits>
#include <nlohmann/json.hpp>

#include "starling/telemetry/unix_time.h"

namespace starling {
namespace {

using testing::HasSubstr;
using testing::Not;

Fault parsed(int rank, const std::exception& error) {
  const std::string line = fault_line(rank, error);
  EXPECT_EQ(line.back(), '\n');
  const auto fault = parse_fault_line(rank, std::string_view(line).substr(0, line.size() - 1));
  EXPECT_TRUE(fault.has_value());
  return fault.value_or(Fault{});
}

TEST(Fault, ALineComesBackAsItWent) {
  const Fault f = parsed(2, CommError("rank 1 (node-b) lost:\n\"reset\"", 1));
  EXPECT_EQ(f.rank, 2);
  EXPECT_EQ(f.code, ErrorCode::kComm);
  EXPECT_EQ(f.peer, 1);
  EXPECT_EQ(f.message, "rank 1 (node-b) lost:\n\"reset\"");
  EXPECT_EQ(parsed(0, DataError("x")).code, ErrorCode::kData);
  EXPECT_EQ(parsed(0, std::bad_alloc()).code, ErrorCode::kMemory);
  EXPECT_EQ(parsed(0, std::runtime_error("x")).code, ErrorCode::kInternal);
}

TEST(Fault, TheErrorEventHasATimeLikeEveryEvent) {
  const double before = unix_time_s();
  const auto event = nlohmann::json::parse(error_event(parsed(2, DataError("no such file: x.idx"))));
  EXPECT_EQ(event["event"], "error");
  EXPECT_EQ(event["code"], "data");
  EXPECT_EQ(event["message"], "rank 2: no such file: x.idx");
  EXPECT_GE(event["time"], before);
  EXPECT_LE(event["time"], unix_time_s());
}

TEST(Fault, ALongOrBrokenMessageStillFitsAPipe) {
  EXPECT_LE(fault_line(1, DataError(std::string(100'000, '"'))).size(), size_t{PIPE_BUF});
  EXPECT_THAT(parsed(1, DataError("\xff\xfe end")).message, HasSubstr("end"));
}

TEST(Fault, OtherLinesAreNotFaults) {
  for (const char* line : {"", "text", "[1]", "{}", R"({"message":3})", R"({"rank":1)"}) {
    EXPECT_FALSE(parse_fault_line(0, line).has_value()) << line;
  }
}

TEST(Fault, ADeathOutranksComplaintsAboutIt) {
  Fault complaint = parsed(0, CommError("peer rank 2 died", 2));
  Fault late = parsed(1, TimeoutError("rank 2 is late", 2));
  Fault death;
  death.rank = 2;
  death.signal = SIGKILL;
  death.step = 812;
  EXPECT_EQ(first_fault({complaint, late, death})->rank, 2);
  EXPECT_EQ(first_fault({complaint, late})->rank, 0);
  EXPECT_EQ(first_fault({}), nullptr);
  const Fault nan = parsed(3, Error(ErrorCode::kNumeric, "loss is NaN"));
  EXPECT_EQ(first_fault({complaint, nan, death})->rank, 3);
}

TEST(Fault, Descriptions) {
  Fault death;
  death.rank = 2;
  death.signal = SIGKILL;
  death.step = 812;
  EXPECT_THAT(describe(death), HasSubstr("rank 2 was killed by signal 9 (SIGKILL) after step 812"));
  EXPECT_THAT(describe(death), HasSubstr("memory"));
  death.signal = SIGSEGV;
  death.step = -1;
  EXPECT_EQ(describe(death), "rank 2 was killed by signal 11 (SIGSEGV) before its first step");
  Fault exit;
  exit.rank = 1;
  exit.status = 3;
  EXPECT_EQ(describe(exit), "rank 1 ended with exit status 3 before its first step");
  EXPECT_EQ(describe(parsed(1, DataError("no file"))), "rank 1: no file");
  EXPECT_EQ(describe(parsed(1, DataError("rank 1: no file"))), "rank 1: no file");
}

TEST(Fault, ARequestToEndAStuckRankIsNoFault) {
  const std::string line = stuck_line(1, {0, "it did not answer \"in time\""});
  const auto stuck = parse_stuck_line(line);
  ASSERT_TRUE(stuck.has_value());
  EXPECT_EQ(stuck->rank, 0);
  EXPECT_EQ(stuck->why, "it did not answer \"in time\"");
  for (const char* other : {"", "text", "[1]", "{}", R"({"stuck":"0"})", R"({"stuck":4294967296})"})
    EXPECT_FALSE(parse_stuck_line(other)) << other;
  EXPECT_FALSE(parse_stuck_line(fault_line(1, CommError("x"))));
  Fault ended;
  ended.rank = 0;
  ended.signal = SIGKILL;
  ended.step = 12;
  ended.stuck = "it did not answer";
  EXPECT_EQ(describe(ended),
            "rank 0 was ended by the launcher after step 12, because the other ranks gave it up: it did not "
            "answer");
}

TEST(Fault, WithoutALauncherNothingIsReported) {
  EXPECT_FALSE(report_fatal(Environment{}, DataError("x")));
}

}  // namespace
}  // namespace starling
