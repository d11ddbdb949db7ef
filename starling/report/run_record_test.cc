// What a record makes of lines that are no events, or events of another version.
#include "starling/report/run_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace starling {
namespace {

TEST(RunRecord, IgnoresEventsWhoseFieldsHaveOtherTypes) {
  std::string deep = R"({"event":"result","strategy":)";
  deep += std::string(200'000, '[') + std::string(200'000, ']') + "}";
  RunRecord run;
  for (const std::string& line :
       {std::string(R"({"event":1})"), std::string(R"({"event":"step","step":"1"})"),
        std::string(R"({"event":"step","step":1e300})"),
        std::string(R"({"event":"step","step":18446744073709551615})"),
        std::string(R"({"event":"run","choices":[1]})"),
        std::string(R"({"event":"result","peak_rss_mb":["x"]})"),
        std::string(R"({"event":"error","message":7})")})
    run.add_line(line);
  EXPECT_FALSE(run.finished);
  EXPECT_EQ(run.error, "");
  EXPECT_TRUE(run.steps.empty());
  // The product of both numbers is above 2^63.
  run.add_line(R"({"event":"run","model":"m","ranks":2,"global_batch":9223372036854775807})");
  run.add_line(R"({"event":"step","step":9223372036854775807,"loss":1,"step_s":0.1})");
  ASSERT_EQ(run.steps.size(), 1u);
  EXPECT_NEAR(run.steps[0].samples, std::pow(2.0, 126), 1e25);
  run.add_line(deep);
  EXPECT_TRUE(run.finished);
}

TEST(RunRecord, IgnoresWhatIsNoEventAndKeepsTheError) {
  RunRecord run;
  for (const char* line :
       {"", "step 1", "{not json", "[1]", R"({"event":"step","step":1,"loss":null,"step_s":0.1})",
        R"({"event":"error","message":"rank 1 was lost"})"})
    run.add_line(line);
  EXPECT_FALSE(run.finished);
  EXPECT_EQ(run.error, "rank 1 was lost");
  ASSERT_EQ(run.steps.size(), 1u);
  EXPECT_TRUE(std::isnan(run.steps[0].loss));
}

}  // namespace
}  // namespace starling
