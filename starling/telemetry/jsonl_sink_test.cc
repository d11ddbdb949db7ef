#include "starling/telemetry/jsonl_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/telemetry/to_json.h"
#include "starling/testing/manual_clock.h"

namespace starling {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

// Forwards to an Output that outlives the sink.
class Tee final : public Output {
 public:
  explicit Tee(std::string& to) : to_(to) {}
  bool write(std::string_view text) override {
    to_ += text;
    return true;
  }

 private:
  std::string& to_;
};

StepDone step(int64_t n) {
  StepDone e;
  e.step = n;
  e.loss = 0.5;
  e.slowest_rank = 1;
  return e;
}

TEST(ToJson, EventComesFirstAndFieldsKeepTheirNames) {
  const std::string text = to_json(step(12));
  EXPECT_THAT(text, StartsWith(R"({"event":"step","step":12,)"));
  const json j = json::parse(text);
  EXPECT_EQ(j["loss"], 0.5);
  EXPECT_EQ(j["slowest_rank"], 1);
  EXPECT_TRUE(j.contains("exposed_comm_s"));
}

TEST(ToJson, TheStampFollowsTheNameOfTheEvent) {
  EXPECT_THAT(to_json(step(12), {1767268800.5, "0a1b"}),
              StartsWith(R"({"event":"step","time":1767268800.5,"run_id":"0a1b","step":12,)"));
}

TEST(ToJson, ResultLeavesOutWhatHasNoMeaning) {
  RunResult r;
  r.steps = 7;
  r.ranks = 2;
  r.train_loss = 0.5;
  r.test_accuracy = 0.99;
  r.peak_rss_mb = {310.5, 312};
  r.bytes_sent = uint64_t{1} << 63;
  const json j = json::parse(to_json(r));
  EXPECT_EQ(j["event"], "result");
  EXPECT_EQ(j["test_accuracy"], 0.99);
  EXPECT_FALSE(j.contains("test_loss"));
  EXPECT_EQ(j["peak_rss_mb"], json({310.5, 312}));
  EXPECT_EQ(j["bytes_sent"], uint64_t{1} << 63);
  for (const char* key : {"samples_per_s", "train_loss", "steps", "ranks", "params", "compute_s",
                          "exposed_comm_s", "data_wait_s", "interrupted", "wall_s", "model"}) {
    EXPECT_TRUE(j.contains(key)) << key;
  }
  r.test_accuracy = -1;
  r.train_loss = RunResult().train_loss;  // no step was made
  const json untested = json::parse(to_json(r));
  for (const char* key :
       {"train_loss", "first_step", "test_accuracy", "test_loss", "lost_ranks", "recovery_s", "strategy"})
    EXPECT_FALSE(untested.contains(key)) << key;
}

TEST(ToJson, SurvivesNanAndBrokenUtf8) {
  StepDone e = step(1);
  e.loss = std::nan("");
  EXPECT_TRUE(json::parse(to_json(e))["loss"].is_null());
  const std::string text = to_json(Message{Severity::kWarning, 3, "bad \xff\xfe \"quoted\"\n"});
  EXPECT_THAT(json::parse(text)["text"].get<std::string>(), HasSubstr("\"quoted\"\n"));
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(FencedOutput, WritesNothingAfterAnotherProcessHasTakenOver) {
  std::string written;
  bool held = true;
  FencedOutput output(std::make_unique<Tee>(written), [&] { return held; });
  EXPECT_TRUE(output.write("mine"));
  held = false;
  EXPECT_TRUE(output.write("not mine"));
  EXPECT_EQ(written, "mine");
}

TEST(JsonlSink, GathersStepsAndWritesOtherEventsAtOnce) {
  ManualClock clock;
  std::string written;
  JsonlSink sink(std::make_unique<Tee>(written), clock, "test");
  sink.emit(step(1));
  EXPECT_EQ(written, "");
  sink.emit(EvalDone{1, 0.25, 0.5, 10});
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 2);
  sink.emit(step(2));
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 2);
  clock.advance(std::chrono::milliseconds(200));
  sink.emit(step(3));
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 4);
  sink.emit(step(4));
  sink.flush();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 5);
}

TEST(JsonlSink, AClosedPipeIsSaidOnceAndNeverASignal) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ManualClock clock;
  close(ends[0]);
  JsonlSink sink(std::make_unique<FdOutput>(UniqueFd(ends[1])), clock, "the pipe", Nanoseconds(0));
  testing::internal::CaptureStderr();
  sink.emit(step(1));
  sink.emit(step(2));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("cannot write events to the pipe (Broken pipe)"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

TEST(JsonlSink, AFolderThatIsNotThereIsAConfigError) {
  ManualClock clock;
  try {
    open_jsonl_file("/nowhere/at/all/events.jsonl", clock);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("/nowhere/at/all/events.jsonl"));
    EXPECT_THAT(e.what(), HasSubstr("--run-dir"));
  }
}

}  // namespace
}  // namespace starling
