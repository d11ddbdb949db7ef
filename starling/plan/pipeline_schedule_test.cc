#include "starling/plan/pipeline_schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "starling/base/error.h"
#include "starling/plan/schedule_check.h"
#include "starling/plan/schedule_simulation.h"
#include "starling/plan/schedule_text.h"
#include "starling/testing/error_of.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

void for_all_sizes(const std::function<void(const std::string& name, int p, int v, int m)>& body) {
  for (const std::string& name : schedule_names()) {
    for (int p = 2; p <= 8; ++p) {
      for (int v = 1; v <= (name == "interleaved" ? 3 : 1); ++v) {
        for (int m = 1; m <= 32; ++m) {
          SCOPED_TRACE(fmt::format("{}, {} ranks, {} chunks, {} micro-batches", name, p, v, m));
          body(name, p, v, m);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(PipelineScheduleTest, EveryBuiltTableIsCompleteFreeOfDeadlockAndWithinItsMemory) {
  for_all_sizes([](const std::string& name, int p, int v, int m) {
    const Schedule schedule = make_schedule(name, p, v, m);
    const ScheduleFacts facts = check_schedule(schedule);
    EXPECT_EQ(facts.messages, 2 * m * (p * v - 1));
    for (int r = 0; r < p; ++r) {
      int bound = name == "naive" ? 1 : name == "gpipe" ? m : std::min(m, p - r);
      const int groups = std::max(1, m / p), largest_group = (m + groups - 1) / groups;
      if (v > 1) bound = std::min(m * v, 2 * (p - 1 - r) + (v - 1) * largest_group + 1);
      EXPECT_EQ(facts.live[r], bound) << "rank " << r;
    }
  });
}

TEST(PipelineScheduleTest, UnderUnitCostsTheBubbleIsTheFormula) {
  for_all_sizes([](const std::string& name, int p, int v, int m) {
    // The formula is exact if the number of ranks divides the number of micro-batches.
    if (v > 1 && m % p != 0) return;
    const SimulatedStep step = simulate_schedule(make_schedule(name, p, v, m), {});
    EXPECT_NEAR(step.bubble, planned_bubble(name, p, v, m), 1e-12);
  });
}

TEST(PipelineScheduleTest, FormulasAreThoseOfThePapers) {
  EXPECT_DOUBLE_EQ(planned_bubble("naive", 4, 1, 8), 3.0 / 4);
  EXPECT_DOUBLE_EQ(planned_bubble("gpipe", 4, 1, 8), 3.0 / 11);
  EXPECT_DOUBLE_EQ(planned_bubble("1f1b", 4, 1, 8), 3.0 / 11);
  EXPECT_DOUBLE_EQ(planned_bubble("interleaved", 4, 2, 8), 3.0 / 19);
  EXPECT_EQ(planned_bubble("my-own", 4, 2, 8), -1);
}

TEST(PipelineScheduleTest, MoreChunksNeverMakeTheStepLonger) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = p; m <= 32; m += p) {
      const double one = simulate_schedule(make_schedule("interleaved", p, 1, m), {{1}, {2}, 0}).makespan;
      const double two = simulate_schedule(make_schedule("interleaved", p, 2, m), {{0.5}, {1}, 0}).makespan;
      EXPECT_LT(two, one) << p << " " << m;
    }
  }
}

TEST(PipelineScheduleTest, SimulationPlacesMessagesAndUnequalStages) {
  const Schedule schedule = make_schedule("1f1b", 2, 1, 2);
  // On stage 0, a forward takes 1 and a backward 2. On stage 1, they take 3 and 4. A message takes 0.5.
  // Stage 1 works without a pause from 1.5 to 15.5.
  const SimulatedStep step = simulate_schedule(schedule, {{1, 3}, {2, 4}, 0.5});
  EXPECT_DOUBLE_EQ(step.makespan, 1 + 0.5 + 3 + 4 + 3 + 4 + 0.5 + 2);
  EXPECT_DOUBLE_EQ(step.bubble, 1 - 20 / (2 * 18.0));
  const TimedAction& last = step.timeline.back();
  EXPECT_EQ(last.rank, 1);
  EXPECT_EQ(last.action.kind, ActionKind::kSendGradient);
  EXPECT_DOUBLE_EQ(last.end, 15.5);
}

TEST(PipelineScheduleTest, TheTableOf1f1bOnTwoRanks) {
  EXPECT_EQ(print_schedule(make_schedule("1f1b", 2, 1, 3)),
            "schedule 1f1b\nranks 2\nchunks 1\nmicro-batches 3\n"
            "rank 0: F0 SA0 F1 SA1 RG0 B0 F2 SA2 RG1 B1 RG2 B2\n"
            "rank 1: RA0 F0 B0 SG0 RA1 F1 B1 SG1 RA2 F2 B2 SG2\n");
}

TEST(PipelineScheduleTest, TheOrderOfInterleavedIsMegatrons) {
  // p = 2, v = 2, m = 4 (arXiv 2104.04473, figure 4, with two devices): there are groups of two
  // micro-batches.
  const Schedule schedule = make_schedule("interleaved", 2, 2, 4);
  std::string forwards, backwards;
  for (const Action& a : schedule.actions[0]) {
    if (a.kind == ActionKind::kForward) forwards += fmt::format(" {}.{}", a.micro_batch, a.chunk);
    if (a.kind == ActionKind::kBackward) backwards += fmt::format(" {}.{}", a.micro_batch, a.chunk);
  }
  EXPECT_EQ(forwards, " 0.0 1.0 0.1 1.1 2.0 3.0 2.1 3.1");
  EXPECT_EQ(backwards, " 0.1 1.1 0.0 1.0 2.1 3.1 2.0 3.0");
}

TEST(PipelineScheduleTest, StagesOfOneRankNeedNoMessages) {
  const Schedule schedule = make_schedule("interleaved", 1, 3, 4);
  EXPECT_EQ(check_schedule(schedule).messages, 0);
  EXPECT_EQ(simulate_schedule(schedule, {}).bubble, 0);
}

TEST(PipelineScheduleTest, TextKeepsEveryTable) {
  for_all_sizes([](const std::string& name, int p, int v, int m) {
    if (m > 9) return;
    const Schedule schedule = make_schedule(name, p, v, m);
    const Schedule again = parse_schedule(print_schedule(schedule), "table");
    EXPECT_EQ(again.actions, schedule.actions);
    EXPECT_EQ(again.name, name);
    EXPECT_EQ(again.stages(), schedule.stages());
    EXPECT_EQ(again.micro_batches, m);
  });
}

TEST(PipelineScheduleTest, MakeScheduleRefuses) {
  EXPECT_THAT(error_of<ConfigError>([] { make_schedule("1f1f", 2, 1, 2); }),
              HasSubstr("did you mean \"1f1b\"?"));
  EXPECT_THAT(error_of<ConfigError>([] { make_schedule("gpipe", 2, 2, 2); }),
              HasSubstr("only --schedule interleaved"));
  EXPECT_THAT(error_of<ConfigError>([] { make_schedule("gpipe", 2, 1, 0); }),
              HasSubstr("--micro-batches: is 0"));
}

// Parses `text` as a schedule of two ranks and two micro-batches.
Schedule two_ranks(const std::string& text) {
  return parse_schedule("schedule mine\nranks 2\nmicro-batches 2\n" + text, "mine.txt");
}

TEST(PipelineScheduleTest, ATableFromAFileMayBeAnythingThatRuns) {
  const Schedule schedule = two_ranks(
      "rank 0: F0 F1 SA1 SA0   # the second micro-batch goes first\n"
      "  RG1 B1 RG0 B0\n"
      "rank 1: RA1 F1 B1 SG1 RA0 F0 B0 SG0\n");
  EXPECT_THAT(check_schedule(schedule).live, ElementsAre(2, 1));
  // Rank 0 works from 0 to 2, from 5 to 7 and from 8 to 10. Rank 1 works from 2 to 8. A forward takes 1, a
  // backward 2.
  const SimulatedStep step = simulate_schedule(schedule, {});
  EXPECT_DOUBLE_EQ(step.makespan, 10);
  EXPECT_DOUBLE_EQ(step.bubble, 1 - 12 / (2 * 10.0));
}

TEST(PipelineScheduleTest, ADeadlockNamesWhichActionWaitsForWhich) {
  // Rank 0 waits for the gradient of micro-batch 0 before it sends micro-batch 1. Rank 1 waits for
  // micro-batch 1 before it sends the gradient of micro-batch 0.
  const Schedule schedule = two_ranks(
      "rank 0: F0 SA0 F1\n"
      "  RG0 B0 SA1 RG1 B1\n"
      "rank 1: RA0 F0 RA1 F1 B0 SG0 B1 SG1\n");
  const std::string message = error_of<ConfigError>([&] { check_schedule(schedule); });
  EXPECT_THAT(message,
              AllOf(HasSubstr("mine.txt:5:3: deadlock"),
                    HasSubstr("rank 0 at recv-gradient of micro-batch 0 (line 5) waits for rank 1's "
                              "send-gradient of micro-batch 0 (line 6), which comes after its "
                              "recv-activation of micro-batch 1"),
                    HasSubstr("rank 1 at recv-activation of micro-batch 1 (line 6) waits for rank 0's "
                              "send-activation of micro-batch 1 (line 5)")));
}

TEST(PipelineScheduleTest, SendsThatWaitForTheirReceiverDeadlock1f1bButNotGpipe) {
  EXPECT_THAT(
      error_of<ConfigError>([] { check_schedule(make_schedule("1f1b", 2, 1, 4), Delivery::kRendezvous); }),
      AllOf(HasSubstr("schedule 1f1b: deadlock"), HasSubstr("rank 0 at send-activation of micro-batch 1"),
            HasSubstr("its action 4")));
  for (const char* name : {"naive", "gpipe"}) {
    EXPECT_THAT(check_schedule(make_schedule(name, 4, 1, 8), Delivery::kRendezvous).messages, 2 * 8 * 3)
        << name;
  }
}

TEST(PipelineScheduleTest, IncompleteTablesAreRefusedWithTheirPlace) {
  const std::string rank1 = "rank 1: RA0 F0 B0 SG0 RA1 F1 B1 SG1\n";
  const auto refused = [&](const std::string& rank0) {
    return error_of<ConfigError>([&] { check_schedule(two_ranks("rank 0: " + rank0 + "\n" + rank1)); });
  };
  EXPECT_THAT(refused("F0 SA0 RG0 B0 F1 SA1 RG1"),
              HasSubstr("mine.txt: rank 0 has no backward of micro-batch 1"));
  EXPECT_THAT(refused("F0 SA0 RG0 B0 F1 SA1 RG1 B1 F1"),
              HasSubstr("mine.txt:4:37: rank 0: forward of micro-batch 1 occurs twice"));
  EXPECT_THAT(refused("F0 SA0 B0 RG0 F1 SA1 RG1 B1"),
              HasSubstr("rank 0: backward of micro-batch 0 must come after recv-gradient of micro-batch 0"));
  EXPECT_THAT(refused("SA0 F0 RG0 B0 F1 SA1 RG1 B1"), HasSubstr("must come after forward of micro-batch 0"));
  EXPECT_THAT(refused("RA0 F0 SA0 RG0 B0 F1 SA1 RG1 B1"),
              HasSubstr("rank 0 has no peer for its recv-activation of micro-batch 0: stage 0 is the first"));
  EXPECT_THAT(refused("F2 SA0 RG0 B0 F1 SA1 RG1 B1"), HasSubstr("does not exist"));
  EXPECT_THAT(error_of<ConfigError>([&] { check_schedule(two_ranks(rank1)); }),
              HasSubstr("rank 0 has no forward"));
}

TEST(PipelineScheduleTest, BadFilesAreRefusedAtLineAndColumn) {
  EXPECT_THAT(error_of<ConfigError>([] { two_ranks("rank 0: F0 X1\n"); }),
              HasSubstr("mine.txt:4:12: \"X1\" is not an action"));
  EXPECT_THAT(error_of<ConfigError>([] { two_ranks("rank 2: F0\n"); }),
              HasSubstr("mine.txt:4:6: no rank \"2\""));
  EXPECT_THAT(error_of<ConfigError>([] { two_ranks("rank 0: F0.x\n"); }), HasSubstr("chunk after the dot"));
  EXPECT_THAT(error_of<ConfigError>([] { two_ranks("F0\n"); }), HasSubstr("before the first `rank N:`"));
  EXPECT_THAT(error_of<ConfigError>([] { two_ranks("chunks 0\n"); }),
              HasSubstr("mine.txt:4:8: chunks is \"0\""));
  EXPECT_THAT(error_of<ConfigError>([] { two_ranks("rank 0 F0\n"); }), HasSubstr("as in `rank 0:`"));
  EXPECT_THAT(error_of<ConfigError>([] { two_ranks("rank 0: F0\nrank 0: F1\n"); }),
              HasSubstr("rank 0 occurs twice"));
  // Ranks after the first rank's line would disagree with the number of lists of actions.
  EXPECT_THAT(error_of<ConfigError>([] { two_ranks("rank 1: F0\nranks 1\n"); }),
              HasSubstr("mine.txt:5:1: `ranks` occurs twice"));
  EXPECT_THAT(error_of<ConfigError>([] { parse_schedule("ranks 2\n", "f"); }),
              HasSubstr("f: the number of micro-batches is missing"));
  EXPECT_THAT(error_of<ConfigError>([] { parse_schedule("", "f"); }),
              HasSubstr("the number of ranks is missing"));
  EXPECT_THAT(error_of<ConfigError>([] { parse_schedule("ranks", "f"); }),
              HasSubstr("f:1:1: `ranks` is the last word"));
  // The product of these numbers is no int.
  EXPECT_THAT(
      error_of<ConfigError>([] { parse_schedule("ranks 1048576\nchunks 1048576\nmicro-batches 1\n", "f"); }),
      HasSubstr("1048576 ranks with 1048576 chunks each are too many stages"));
  EXPECT_EQ(parse_schedule("ranks 2\nchunks 524288\nmicro-batches 1\n", "f").stages(), 1 << 20);
  EXPECT_THAT(error_of<ConfigError>([] { read_schedule("/nowhere/table"); }),
              HasSubstr("cannot read the schedule file"));
}

}  // namespace
}  // namespace starling
