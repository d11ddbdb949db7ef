#include "starling/telemetry/progress_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/telemetry/summary.h"
#include "starling/telemetry/text_style.h"
#include "starling/testing/manual_clock.h"

namespace starling {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

StepDone step(int64_t n) {
  StepDone e;
  e.step = n;
  e.epoch = 0.5;
  e.loss = 0.31271;
  e.lr = 0.05;
  e.samples_per_s = 4210;
  e.step_s = 0.030;
  e.compute_s = 0.029;
  e.exposed_comm_s = 0.0006;
  e.data_wait_s = 0.0003;
  e.slowest_rank = 1;
  e.eta_s = 125;
  return e;
}

TEST(ProgressLine, SaysEverythingWhereThereIsRoom) {
  EXPECT_EQ(progress_line(step(128), {.total_steps = 1640, .ranks = 2}, 0),
            "step 128/1,640  7 %  epoch 0.50  loss 0.3127  4,210 samples/s  waiting 3.0 %  slowest rank 1  "
            "ETA 2:05");
}

TEST(ProgressLine, FitsEveryWidth) {
  for (const bool color : {false, true}) {
    for (int columns = 1; columns < 200; ++columns) {
      std::string line = progress_line(
          step(128), {.total_steps = 640, .ranks = 2, .verbose = true, .color = color}, columns);
      for (size_t at; (at = line.find('\x1b')) != std::string::npos;)
        line.erase(at, line.find('m', at) - at + 1);
      EXPECT_LE(display_width(line), columns) << line;
      EXPECT_EQ(line.substr(0, 4), std::string("step").substr(0, std::min(4, columns)));
    }
  }
  EXPECT_EQ(progress_line(step(128), {.total_steps = 640, .ranks = 2}, 40),
            "step 128/640  loss 0.3127  ETA 2:05");
}

TEST(ProgressLine, OneRankHasNoSlowestAndAnUnboundedRunNoEta) {
  EXPECT_THAT(progress_line(step(3), {}, 0), HasSubstr("  waiting 3.0 %"));  // for a server
  StepDone fed = step(3);
  fed.exposed_comm_s = 0;
  const std::string line = progress_line(fed, {}, 0);
  EXPECT_THAT(line, Not(HasSubstr("slowest")));
  EXPECT_THAT(line, HasSubstr("  waiting for data 1.0 %"));
  fed.data_wait_s = 0;
  EXPECT_THAT(progress_line(fed, {}, 0), Not(HasSubstr("waiting")));
  EXPECT_THAT(line, Not(HasSubstr("ETA")));
}

class Progress : public testing::Test {
 protected:
  // Returns the text that the events have written so far.
  struct View final : Output {
    explicit View(StringOutput& to) : to(to) {}
    bool write(std::string_view text) override { return to.write(text); }
    int columns() const override { return to.columns(); }
    StringOutput& to;
  };
  std::unique_ptr<ProgressSink> make(const ProgressOptions& options) {
    return std::make_unique<ProgressSink>(std::make_unique<View>(out_), clock_, options);
  }
  std::string taken() {
    std::string text = out_.text();
    out_.clear();
    return text;
  }
  StringOutput out_{80};
  ManualClock clock_;
  RunStarted start_ = [] {
    RunStarted e;
    e.model = "lenet5";
    e.data = "digits";
    e.ranks = 2;
    e.total_steps = 100;
    return e;
  }();
};

TEST_F(Progress, RedrawsAtMostTenTimesASecondAndFitsTheTerminal) {
  auto sink = make({.terminal = true});
  sink->emit(start_);
  taken();
  sink->emit(step(1));
  EXPECT_THAT(taken(), HasSubstr("\r\x1b[Kstep 1/100"));
  for (int n = 2; n < 10; ++n) {
    clock_.advance(std::chrono::milliseconds(11));
    sink->emit(step(n));
  }
  EXPECT_EQ(taken(), "");
  clock_.advance(std::chrono::milliseconds(12));
  out_.set_columns(31);
  sink->emit(step(10));
  EXPECT_EQ(taken(), "\r\x1b[Kstep 10/100  loss 0.3127");
}

TEST_F(Progress, TheTitleNamesTheDataIfTheDataHasAName) {
  auto sink = make({.terminal = false});
  sink->emit(start_);
  EXPECT_THAT(taken(), testing::StartsWith("lenet5 on digits: 2 ranks x "));
  start_.data.clear();
  sink->emit(start_);
  EXPECT_THAT(taken(), testing::StartsWith("lenet5: 2 ranks x "));
}

TEST_F(Progress, MessagesStandAboveTheLiveLine) {
  auto sink = make({.terminal = true});
  sink->emit(start_);
  sink->emit(step(1));
  taken();
  sink->emit(Message{Severity::kWarning, 2, "first\x1b[2Jsecond"});
  EXPECT_THAT(taken(), testing::StartsWith("\r\x1b[Kwarning: rank 2: first?[2Jsecond\n\r\x1b[Kstep 1/100"));
  sink->emit(EvalDone{1, 0.25, 0.9876, 1024});
  EXPECT_THAT(taken(), testing::StartsWith(
                           "\r\x1b[Ktest at step 1: accuracy 98.76 %, loss 0.2500 on 1,024 samples\n"));
  sink.reset();
  EXPECT_THAT(taken(), EndsWith("\n"));
}

TEST_F(Progress, PlainLinesComeByTimeAndTenthsAndHoldNoEscapes) {
  auto sink = make({.terminal = false});
  sink->emit(start_);
  int lines = 0;
  taken();
  for (int n = 1; n <= 100; ++n) {
    sink->emit(step(n));
    clock_.advance(std::chrono::milliseconds(100));
  }
  const std::string text = taken();
  for (const char c : text) lines += c == '\n';
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, HasSubstr("step 1/100"));
  EXPECT_THAT(text, HasSubstr("step 50/100"));
  EXPECT_THAT(text, HasSubstr("step 100/100"));
  EXPECT_GE(lines, 10);
  EXPECT_LE(lines, 16);
}

TEST_F(Progress, ALongRunDoesNotFillADisk) {
  auto sink = make({.terminal = false});
  start_.total_steps = 0;
  sink->emit(start_);
  taken();
  for (int n = 1; n <= 100'000; ++n) {
    clock_.advance(std::chrono::seconds(1));
    sink->emit(step(n));
  }
  const std::string text = taken();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 250);
}

TEST_F(Progress, QuietShowsErrorsAndTheResultAndVerboseMore) {
  auto quiet = make({.terminal = true, .verbosity = Verbosity::kQuiet});
  quiet->emit(start_);
  quiet->emit(step(1));
  quiet->emit(Message{Severity::kWarning, -1, "w"});
  EXPECT_EQ(taken(), "");
  quiet->emit(RunResult{});
  EXPECT_THAT(taken(), StartsWith("Finished"));
  quiet->emit(Message{Severity::kError, -1, "e"});
  EXPECT_EQ(taken(), "error: e\n");
  quiet.reset();
  EXPECT_EQ(taken(), "");
  auto verbose = make({.terminal = false, .verbosity = Verbosity::kVerbose});
  start_.choices = {{"gemm", "onednn"}};
  verbose->emit(start_);
  verbose->emit(step(1));
  verbose->emit(Message{Severity::kDebug, -1, "detail"});
  const std::string text = taken();
  EXPECT_THAT(text, HasSubstr("chosen: gemm = onednn"));
  EXPECT_THAT(text, HasSubstr("lr 0.05"));
  EXPECT_THAT(text, HasSubstr("detail"));
}

TEST(Summary, AnInterruptedRunNamesTheCommandThatResumesIt) {
  RunResult r;
  r.interrupted = true;
  EXPECT_THAT(summary(r, false), StartsWith("Interrupted. The state is not saved\n"));
  r.resume.command = "./app -n 2 --run-dir runs/a";
  EXPECT_THAT(summary(r, false), StartsWith("Interrupted. The state is saved. This command resumes the run:\n"
                                            "  ./app -n 2 --run-dir runs/a\n"));
  r.resume.launcher = "torchrun";
  EXPECT_THAT(summary(r, false),
              StartsWith("Interrupted. The state is saved. The run resumes if torchrun starts this command:\n"
                         "  ./app -n 2 --run-dir runs/a\n"));
}

TEST(Summary, SharesAddUpAndUnmeasuredRowsAreAbsent) {
  RunResult r;
  r.model = "lenet5";
  r.steps = 640;
  r.ranks = 2;
  r.params = 61706;
  r.samples_per_s = 4210;
  r.train_loss = 0.0312;
  r.test_accuracy = 0.98912;
  r.wall_s = 10;
  r.compute_s = 8;
  r.exposed_comm_s = 0.5;
  r.data_wait_s = 0.02;
  r.bytes_sent = 1'234'567;
  r.peak_rss_mb = {310, 312};
  const std::string text = summary(r, false);
  EXPECT_THAT(text, HasSubstr("compute 80.0 %, waiting for ranks 5.0 %, data 0.2 %, other 14.8 %"));
  EXPECT_THAT(text, HasSubstr("98.91 %"));
  EXPECT_THAT(text, Not(HasSubstr("test loss")));
  EXPECT_THAT(text, HasSubstr("1.2 MB by all ranks"));
  EXPECT_THAT(text, HasSubstr("rank 0: 310 MB, rank 1: 312 MB"));
  EXPECT_THAT(text, HasSubstr("61,706 parameters, 2 ranks"));
}

// A lost rank has no memory in the list, and the ranks that are left keep their numbers.
TEST(Summary, PeakMemoryNamesTheRanksThatAreLeft) {
  RunResult r;
  r.ranks = 3;
  r.lost_ranks = {0};
  r.peak_rss_mb = {310, 312};
  r.rank_times = {{1, 0, 0, 0}, {2, 0, 0, 0}};
  EXPECT_THAT(summary(r, false), HasSubstr("rank 1: 310 MB, rank 2: 312 MB"));
  r.ranks = 6;
  r.peak_rss_mb = {310, 312, 311, 310, 309};
  r.rank_times = {{1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 0, 0}, {4, 0, 0, 0}, {5, 0, 0, 0}};
  EXPECT_THAT(summary(r, false), HasSubstr("309 MB to 312 MB per rank, most on rank 2"));
}

TEST(Summary, OneRankWaitsForNoRankAndAResumedRunSaysWhatIsNew) {
  RunResult r;
  r.steps = 300;
  r.samples_per_s = 4210;
  r.wall_s = 10;
  r.compute_s = 8;
  r.data_wait_s = 0.5;
  EXPECT_THAT(summary(r, false), HasSubstr("compute 80.0 %, data 5.0 %, other 15.0 %"));
  r.exposed_comm_s = 1;  // for a server
  EXPECT_THAT(summary(r, false),
              HasSubstr("compute 80.0 %, waiting for ranks 10.0 %, data 5.0 %, other 5.0 %"));
  EXPECT_THAT(summary(r, false), HasSubstr("4,210 samples/s (median)\n"));
  EXPECT_THAT(summary(r, false), Not(HasSubstr("resumed")));
  r.first_step = 248;
  r.ranks = 2;
  const std::string text = summary(r, false);
  EXPECT_THAT(text, HasSubstr("300, 52 of them since the run resumed\n"));
  EXPECT_THAT(text, HasSubstr("10 s since the run resumed\n"));
  EXPECT_THAT(text, HasSubstr("0 B by all ranks since the run resumed\n"));
  EXPECT_THAT(text, HasSubstr("4,210 samples/s over all ranks (median)\n"));
}

TEST(Summary, ARunThatTrainedNothingHasNoLoss) {
  RunResult r;
  r.steps = r.first_step = 400;
  EXPECT_THAT(summary(r, false), testing::AllOf(HasSubstr("Nothing was trained"), Not(HasSubstr("Finished")),
                                                Not(HasSubstr("train loss")), HasSubstr("400")));
  r.steps = 401;
  r.train_loss = 0.5;
  EXPECT_THAT(summary(r, false), testing::AllOf(HasSubstr("Finished"), HasSubstr("train loss")));
}

TEST(TextStyle, NumbersAsPeopleReadThem) {
  EXPECT_EQ(ranks_text(1), "1 rank");
  EXPECT_EQ(ranks_text(65536), "65,536 ranks");
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(with_thousands(-1234567), "-1,234,567");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(significant(0.31271), "0.3127");
  EXPECT_EQ(significant(12345.6), "12,346");
  EXPECT_EQ(significant(0), "0.000");
  EXPECT_EQ(significant(2e-7), "2.000e-07");
  EXPECT_EQ(duration(3725), "1:02:05");
  EXPECT_EQ(duration(-1), "-");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(123'456'789), "123 MB");
  EXPECT_EQ(display_width("a\xc3\xa9z"), 3);
  EXPECT_EQ(cut("a\xc3\xa9z", 2), "a\xc3\xa9");
}

// AsyncSink flushes a sink that gets no events for half a second, as during a slow evaluation.
TEST_F(Progress, AFlushKeepsTheLineOfAnEvaluation) {
  const auto sink = make({.terminal = true});
  sink->emit(start_);
  sink->emit(step(1));
  sink->emit(step(2));  // not drawn yet
  sink->show_progress({.step = 2, .samples = 10, .of = 40});
  EXPECT_THAT(taken(), HasSubstr("testing at step 2  25 %"));
  sink->flush();
  EXPECT_EQ(taken(), "");
}

}  // namespace
}  // namespace starling
