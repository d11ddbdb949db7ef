#include "starling/run/choice/share_measurement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "starling/base/error.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Shares = std::vector<int64_t>;

TEST(SharesBySpeed, AreProportionalToSamplesPerSecond) {
  EXPECT_THAT(shares_by_speed({33, 33}, {1, 2}, 1), ElementsAre(44, 22));
  EXPECT_THAT(shares_by_speed({44, 22}, {2, 2}, 1), ElementsAre(44, 22));
  EXPECT_THAT(shares_by_speed({20, 20, 20}, {1, 1, 2}, 1), ElementsAre(24, 24, 12));
}

TEST(SharesBySpeed, AreEqualForRanksOfAboutEqualSpeed) {
  EXPECT_THAT(shares_by_speed({32, 32}, {1, 1.09}, 1), ElementsAre(32, 32));
  EXPECT_THAT(shares_by_speed({40, 24}, {40, 24.5}, 1), ElementsAre(32, 32));
  EXPECT_THAT(shares_by_speed({32, 32}, {1, 1.2}, 1), ElementsAre(35, 29));
}

TEST(SharesBySpeed, KeepTheLeastNumberOfSamples) {
  EXPECT_THAT(shares_by_speed({8, 8}, {1, 100}, 4), ElementsAre(12, 4));
  EXPECT_THAT(shares_by_speed({8, 8}, {0, 1}, 1), ElementsAre(15, 1));  // the clock has shown no time
}

// The second rank needs 0.1 s for each sample, and the first one half of that. Both need 0.2 s more in each
// step, whatever their share.
double seconds_of(int rank, int64_t samples) {
  return 0.2 + (rank == 0 ? 0.05 : 0.1) * static_cast<double>(samples);
}

TEST(ShareMeasurement, AgreesInTwoRounds) {
  std::mutex mutex;
  std::vector<Shares> first(2), last(2);
  std::vector<std::string> texts(2);
  run_ranks(2, [&](const ThreadRank& self) {
    const auto group = join_group(*self.store, self.rank, self.size);
    ShareMeasurement measurement({12, 12}, 1, *group);
    Shares after_first;
    int steps = 0;
    while (!measurement.done()) {
      ++steps;
      // One step is disturbed, and the first step is cold.
      const bool odd = steps == 1 || steps == ShareMeasurement::kSkipped + 4;
      const double seconds =
          seconds_of(self.rank, measurement.shares()[static_cast<size_t>(self.rank)]) * (odd ? 50 : 1);
      const bool changed = measurement.add(seconds);
      EXPECT_EQ(changed, steps % (ShareMeasurement::kSkipped + ShareMeasurement::kMeasured) == 0);
      if (changed && after_first.empty()) after_first = measurement.shares();
    }
    EXPECT_EQ(steps, ShareMeasurement::kSteps);
    const std::lock_guard lock(mutex);
    first[static_cast<size_t>(self.rank)] = after_first;
    last[static_cast<size_t>(self.rank)] = measurement.shares();
    texts[static_cast<size_t>(self.rank)] = measurement.message().text;
  });
  EXPECT_THAT(first[0], ElementsAre(15, 9));  // 0.8 s and 1.4 s for 12 samples: 15.3 and 8.7
  EXPECT_THAT(last[0], ElementsAre(16, 8));   // 0.95 s and 1.1 s: 15.8 and 8.2
  EXPECT_EQ(first[0], first[1]);
  EXPECT_EQ(last[0], last[1]);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_THAT(texts[0], HasSubstr("the ranks keep 16, 8 samples of a step by rank"));
}

RunSpec spec_of(int64_t ranks, const std::string& share) {
  RunSpec spec;
  spec.train.ranks = ranks;
  spec.train.global_batch = 64;
  spec.data.share = share;
  return spec;
}

TEST(KnownParts, AreTheListOrTheChoiceOfAnEarlierStart) {
  const Choices choices = {{"share", "40,24"}};
  EXPECT_THAT(known_parts(spec_of(2, ""), choices), IsEmpty());
  EXPECT_THAT(known_parts(spec_of(2, "3,1"), choices), ElementsAre(3, 1));
  EXPECT_THAT(known_parts(spec_of(2, "auto"), choices), ElementsAre(40, 24));
  EXPECT_THAT(known_parts(spec_of(2, "auto"), {}), IsEmpty());
  EXPECT_THAT(known_parts(spec_of(3, "auto"), choices), IsEmpty());              // another number of ranks
  EXPECT_THAT(known_parts(spec_of(2, "auto"), {{"share", "64,0"}}), IsEmpty());  // rank 1 was lost
  EXPECT_THROW(known_parts(spec_of(3, "3,1"), choices), ConfigError);
}

TEST(AgreeOnShares, AllRanksTakeThoseOfRank0) {
  run_ranks(3, [](const ThreadRank& self) {
    const auto group = join_group(*self.store, self.rank, self.size);
    // Rank 0 had agreed on the last shares before a rank was lost, and the others had not.
    Choices choices = {{"gemm", "mkl"}};
    std::vector<double> parts = {20, 20, 12, 12};
    if (self.rank == 0) {
      choices["share"] = "30,10,12,12";
      parts = {30, 10, 12, 12};
    }
    agree_on_shares(spec_of(4, "auto"), *group, choices, parts);
    EXPECT_EQ(choices, (Choices{{"gemm", "mkl"}, {"share", "30,10,12,12"}}));
    EXPECT_THAT(parts, ElementsAre(30, 10, 12, 12));
  });
  run_ranks(2, [](const ThreadRank& self) {
    const auto group = join_group(*self.store, self.rank, self.size);
    Choices choices;
    if (self.rank == 1) choices["share"] = "32,32";
    std::vector<double> parts;
    agree_on_shares(spec_of(2, "auto"), *group, choices, parts);
    EXPECT_THAT(choices, IsEmpty());
  });
}

TEST(SharesOfRun, LostRanksHaveNone) {
  EXPECT_THAT(shares_of_run(spec_of(3, "2,1,1"), {2, 1, 1}, {0, 1, 2}), ElementsAre(32, 16, 16));
  EXPECT_THAT(shares_of_run(spec_of(3, "2,1,1"), {2, 1, 1}, {0, 2}), ElementsAre(43, 0, 21));
  EXPECT_THAT(shares_of_run(spec_of(3, ""), {}, {0, 2}), IsEmpty());
}

}  // namespace
}  // namespace starling
