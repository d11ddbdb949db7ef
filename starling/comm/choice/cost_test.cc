// Compares the cost model with figures computed by hand, and checks what the choice makes of them.
#include "starling/comm/choice/cost.h"

#include <gtest/gtest.h>

#include "starling/base/error.h"
#include "starling/comm/choice/choice.h"
#include "starling/comm/choice/tuning.h"
#include "starling/comm/collective/pairwise.h"

namespace starling {
namespace {

constexpr LinkCost kGigabit{.alpha = 50e-6, .overhead = 5e-6, .beta = 8e-9};

TEST(Cost, EightRanksThirtyMegabytes) {
  const auto seconds = [](Algorithm a) {
    return cost_of(CollectiveKind::kAllReduce, a, 8, 30e6).seconds(kGigabit);
  };
  EXPECT_NEAR(seconds(Algorithm::kRing), 14 * 50e-6 + 1.75 * 0.24, 1e-9);
  EXPECT_NEAR(seconds(Algorithm::kBinomialTree), 6 * (50e-6 + 0.24), 1e-9);
  EXPECT_NEAR(seconds(Algorithm::kStar), 2 * 50e-6 + 12 * 5e-6 + 14 * 0.24, 1e-9);
  EXPECT_NEAR(seconds(Algorithm::kHalvingDoubling), 6 * 50e-6 + 1.75 * 0.24, 1e-9);
  EXPECT_NEAR(seconds(Algorithm::kBruck), 3 * 50e-6 + 7 * 0.24, 1e-9);
}

// Two of six ranks hand their tensor to a neighbor and get the sum back; the other four halve and double.
TEST(Cost, HalvingAndDoublingOfSixRanksFoldsTwo) {
  const CollectiveCost cost = cost_of(CollectiveKind::kAllReduce, Algorithm::kHalvingDoubling, 6, 1000);
  EXPECT_DOUBLE_EQ(cost.steps, 2 * 2 + 2);
  EXPECT_DOUBLE_EQ(cost.bytes, 2 * 3.0 / 4 * 1000 + 2 * 1000);
  EXPECT_DOUBLE_EQ(cost.total_bytes, 4 * (2 * 3.0 / 4 * 1000) + 2 * 2 * 1000);
}

TEST(Cost, OneRankCostsNothing) {
  for (const Algorithm a : algorithms_of(CollectiveKind::kAllReduce))
    EXPECT_EQ(cost_of(CollectiveKind::kAllReduce, a, 1, 1e6).seconds(kGigabit), 0) << name_of(a);
}

TEST(Cost, SmallTensorsTakeFewSteps) {
  EXPECT_EQ(cheapest(CollectiveKind::kAllReduce, 2, 64, kGigabit, true), Algorithm::kBruck);
  EXPECT_EQ(cheapest(CollectiveKind::kAllReduce, 8, 30e6, kGigabit, true), Algorithm::kDirect);
  // Among a thousand hosts, a message to each host costs too much. A logarithmic number of steps does not.
  EXPECT_EQ(cheapest(CollectiveKind::kAllReduce, 1024, 4, kGigabit, false), Algorithm::kBruck);
  EXPECT_EQ(cheapest(CollectiveKind::kAllReduce, 1024, 4096, kGigabit, false), Algorithm::kHalvingDoubling);
  EXPECT_EQ(cheapest(CollectiveKind::kAllReduce, 1024, 1e6, kGigabit, false), Algorithm::kHalvingDoubling);
}

TEST(Choice, NameBeforeTuningBeforeModel) {
  Tuning tuning;
  tuning.set({CollectiveKind::kAllReduce, 1 << 20, 4, 4, "tcp", Algorithm::kRing, 10});
  const Choice::Setup setup{Algorithm::kAuto, tuning, 4, 4, "tcp"};
  EXPECT_EQ(Choice(setup).of(CollectiveKind::kAllReduce, 4, 4096), Algorithm::kRing);
  EXPECT_FALSE(Choice(setup).needs_link());
  Choice::Setup named = setup;
  named.named = Algorithm::kStar;
  EXPECT_EQ(Choice(named).of(CollectiveKind::kAllReduce, 4, 4096), Algorithm::kStar);
  EXPECT_EQ(Choice(named).of(CollectiveKind::kAllToAll, 4, 4096), Algorithm::kPairwise);
  Choice::Setup other_link = setup;
  other_link.link = "loopback";
  EXPECT_EQ(Choice(other_link).of(CollectiveKind::kAllReduce, 4, 30'000'000), Algorithm::kDirect);
  EXPECT_TRUE(Choice({Algorithm::kAuto, {}, 4, 4, "tcp"}).needs_link());
  EXPECT_EQ(Choice(other_link).of(CollectiveKind::kAllGather, 4, 4 * kPacedBytes), Algorithm::kRing);
  EXPECT_NE(Choice(other_link).of(CollectiveKind::kAllGather, 4, 4 * kPacedBytes - 4), Algorithm::kRing);
}

TEST(Choice, AutoKeepsRankOrderUpToSixteenHosts) {
  for (int p = 2; p <= kRankOrderRanks; ++p) {
    for (uint64_t bytes = 1; bytes < (1u << 30); bytes *= 2) {
      for (const double alpha : {1e-6, 1e-4, 1e-2}) {
        Choice choice({Algorithm::kAuto, {}, p, p, "tcp"});
        choice.set_link({alpha, alpha / 10, 8e-9});
        EXPECT_TRUE(keeps_rank_order(choice.of(CollectiveKind::kAllReduce, p, bytes)));
      }
    }
  }
}

TEST(Choice, TheMeasuredLinkNeverChangesASum) {
  for (const int p : {17, 24, 33, 64}) {
    for (uint64_t bytes = 1; bytes < (1u << 30); bytes *= 2) {
      for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter}) {
        const Choice unmeasured({Algorithm::kAuto, {}, p, p, "tcp"});
        for (const double alpha : {1e-6, 1e-4, 1e-2}) {
          Choice choice({Algorithm::kAuto, {}, p, p, "tcp"});
          choice.set_link({alpha, alpha / 10, 1e-10});
          EXPECT_EQ(choice.of(kind, p, bytes), unmeasured.of(kind, p, bytes)) << p << ' ' << bytes;
        }
      }
    }
  }
}

TEST(Tuning, ReadsWhatItWrites) {
  Tuning tuning;
  tuning.set({CollectiveKind::kAllReduce, 4096, 4, 2, "tcp", Algorithm::kBruck, 12.5});
  tuning.set({CollectiveKind::kAllReduce, 1 << 20, 4, 2, "tcp", Algorithm::kRing, 900});
  tuning.set({CollectiveKind::kAllGather, 4096, 4, 2, "tcp", Algorithm::kDirect, 3});
  tuning.set({CollectiveKind::kAllReduce, 4096, 4, 2, "tcp", Algorithm::kDirect, 11});  // replaces the first
  const Tuning read = Tuning::parse(tuning.text(), "file");
  EXPECT_EQ(read.text(), tuning.text());
  EXPECT_EQ(read.entries().size(), 3u);
  EXPECT_EQ(read.nearest(CollectiveKind::kAllReduce, 10'000, 4, 2, "tcp")->algorithm, Algorithm::kDirect);
  EXPECT_EQ(read.nearest(CollectiveKind::kAllReduce, 100'000, 4, 2, "tcp")->algorithm, Algorithm::kRing);
  EXPECT_EQ(read.nearest(CollectiveKind::kAllReduce, 4096, 4, 4, "tcp"), nullptr);
  EXPECT_EQ(read.of(4, 2, "tcp").text(), tuning.text());
  EXPECT_TRUE(read.of(4, 4, "tcp").entries().empty());
  EXPECT_EQ(read.nearest(CollectiveKind::kBroadcast, 4096, 4, 2, "tcp"), nullptr);
}

TEST(Tuning, RefusesOtherLines) {
  for (const char* line :
       {"all-reduce 4096 4 2 tcp", "all-reduce 4096 4 2 tcp magic 1", "dance 1 1 1 tcp ring 1",
        "all-to-all 1 1 1 tcp ring 1", "all-reduce 1 1 1 tcp ring 1 2"})
    EXPECT_THROW(Tuning::parse(line, "file"), ConfigError) << line;
  EXPECT_THROW(algorithm_named("fastest"), ConfigError);
  EXPECT_EQ(algorithm_named("hierarchical"), Algorithm::kAuto);
}

}  // namespace
}  // namespace starling
