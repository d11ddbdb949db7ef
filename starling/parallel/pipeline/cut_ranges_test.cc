// The ranges of cuts: what is recorded, when it is used, and what a checkpoint keeps.
#include "starling/parallel/pipeline/cut_ranges.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::ElementsAre;

constexpr CutTensor kOne{3, false, 0};

// Performs a step with a message of one value for each given tensor.
void step(CutRanges& ranges, int64_t index, const std::vector<std::pair<CutTensor, float>>& messages) {
  ranges.begin_step(index);
  for (const auto& [of, value] : messages) ranges.record(of, std::array{value});
  ranges.end_step();
}

TEST(CutRanges, TheRangeIsTheLargestMagnitudeOfTheFirstSteps) {
  CutRanges ranges({.steps = 2, .every = 0, .limit = 100, .percentile = 100});
  EXPECT_EQ(ranges.range_of(kOne), 0);
  ranges.begin_step(1);
  ranges.record(kOne, std::array{1.0f, -5.0f});
  ranges.record(kOne, std::array{2.0f});  // another micro-batch
  EXPECT_EQ(ranges.range_of(kOne), 0);
  ranges.end_step();
  EXPECT_EQ(ranges.range_of(kOne), 0);
  step(ranges, 2, {{kOne, 4.0f}});
  EXPECT_EQ(ranges.range_of(kOne), 5.0f);
  // A later message does not change the range.
  step(ranges, 3, {{kOne, 9.0f}});
  EXPECT_EQ(ranges.range_of(kOne), 5.0f);
}

TEST(CutRanges, EveryTensorAndDirectionHasItsOwnRange) {
  CutRanges ranges({.steps = 1, .every = 0, .limit = 100, .percentile = 100});
  const CutTensor gradient{3, true, 0}, second{3, false, 1}, elsewhere{5, false, 0};
  step(ranges, 1, {{kOne, 1.0f}, {gradient, 2.0f}, {second, 3.0f}, {elsewhere, 4.0f}});
  EXPECT_EQ(ranges.range_of(kOne), 1.0f);
  EXPECT_EQ(ranges.range_of(gradient), 2.0f);
  EXPECT_EQ(ranges.range_of(second), 3.0f);
  EXPECT_EQ(ranges.range_of(elsewhere), 4.0f);
  EXPECT_EQ(ranges.range_of({5, true, 0}), 0);
}

TEST(CutRanges, TheRangeMayBeAPercentileOfEachMessage) {
  CutRanges ranges({.steps = 1, .every = 0, .limit = 100, .percentile = 75});
  ranges.begin_step(1);
  ranges.record(kOne, std::array{1.0f, -2.0f, 3.0f, 100.0f});
  ranges.record(kOne, std::array{-50.0f, 1.0f, 1.0f, 2.0f});
  ranges.end_step();
  EXPECT_EQ(ranges.range_of(kOne), 3.0f);
}

TEST(CutRanges, CalibrationsAreRepeated) {
  CutRanges ranges({.steps = 2, .every = 4, .limit = 100, .percentile = 100});
  std::vector<float> used;
  for (int64_t index = 1; index <= 9; ++index) {
    ranges.begin_step(index);
    used.push_back(ranges.range_of(kOne));
    if (used.back() == 0) ranges.record(kOne, std::array{static_cast<float>(10 - index)});
    ranges.end_step();
  }
  EXPECT_THAT(used, ElementsAre(0, 0, 9, 9, 0, 0, 5, 5, 0));
}

// Four of 100 values are 4 %.
TEST(CutRanges, MoreSaturatedValuesThanTheLimitAreTold) {
  const auto exceeds = [](double limit, double percentile, size_t saturated) {
    CutRanges ranges({.steps = 1, .every = 0, .limit = limit, .percentile = percentile});
    step(ranges, 1, {{kOne, 1.0f}});
    ranges.begin_step(2);
    ranges.count(kOne, 50, saturated);
    ranges.count(kOne, 50, 0);
    ranges.end_step();
    return ranges.exceeds_limit();
  };
  EXPECT_FALSE(exceeds(4, 100, 4));
  EXPECT_TRUE(exceeds(3.9, 100, 4));
  EXPECT_FALSE(exceeds(3, 99, 4));
  EXPECT_TRUE(exceeds(2.9, 99, 4));
  EXPECT_TRUE(exceeds(0, 100, 1));
  EXPECT_FALSE(exceeds(0, 100, 0));
  EXPECT_FALSE(exceeds(100, 100, 50));
}

TEST(CutRanges, ARestartCalibratesAllTensorsAnew) {
  CutRanges ranges({.steps = 1, .every = 0, .limit = 1, .percentile = 100});
  const CutTensor other{3, true, 0};
  step(ranges, 1, {{kOne, 1.0f}, {other, 2.0f}});
  ranges.begin_step(2);
  ranges.count(kOne, 10, 10);
  ranges.end_step();
  EXPECT_TRUE(ranges.exceeds_limit());
  EXPECT_EQ(ranges.range_of(kOne), 1.0f);  // until all ranks know
  ranges.restart();
  EXPECT_EQ(ranges.range_of(kOne), 0);
  EXPECT_EQ(ranges.range_of(other), 0);
  step(ranges, 3, {{kOne, 0.5f}, {other, 0.25f}});
  EXPECT_FALSE(ranges.exceeds_limit());
  EXPECT_EQ(ranges.range_of(kOne), 0.5f);
  EXPECT_EQ(ranges.range_of(other), 0.25f);
}

TEST(CutRanges, StepsWithoutTheTensorDoNotCount) {
  CutRanges ranges({.steps = 2, .every = 0, .limit = 100, .percentile = 100});
  step(ranges, 1, {{kOne, 1.0f}});
  step(ranges, 2, {});
  EXPECT_EQ(ranges.range_of(kOne), 0);
  ranges.record(kOne, std::array{7.0f});  // outside a step
  step(ranges, 3, {{kOne, 2.0f}});
  EXPECT_EQ(ranges.range_of(kOne), 2.0f);
}

TEST(CutRanges, ATensorOfZerosStaysExactUntilItHasAValue) {
  CutRanges ranges({.steps = 2, .every = 0, .limit = 100, .percentile = 100});
  for (int64_t index = 1; index <= 5; ++index) step(ranges, index, {{kOne, 0.0f}});
  EXPECT_EQ(ranges.range_of(kOne), 0);
  step(ranges, 6, {{kOne, std::numeric_limits<float>::quiet_NaN()}});
  EXPECT_EQ(ranges.range_of(kOne), 0);
  step(ranges, 7, {{kOne, -0.5f}});
  EXPECT_EQ(ranges.range_of(kOne), 0.5f);
}

// Each step goes on from a fresh object with the snapshot of the step before.
TEST(CutRanges, ASnapshotContinuesInTheMiddleOfACalibration) {
  const CalibrationOptions options{.steps = 3, .every = 5, .limit = 100, .percentile = 100};
  const CutTensor gradient{12, true, 10};
  const auto message = [](int64_t index) { return static_cast<float>(index * 7 % 5 + 1); };
  CutRanges whole(options);
  std::map<std::string, at::Tensor> kept;
  for (int64_t index = 1; index <= 12; ++index) {
    step(whole, index, {{kOne, message(index)}, {gradient, message(index + 1)}});
    CutRanges resumed(options);
    resumed.load(kept, 2);
    step(resumed, index, {{kOne, message(index)}, {gradient, message(index + 1)}});
    EXPECT_EQ(resumed.range_of(kOne), whole.range_of(kOne)) << index;
    EXPECT_EQ(resumed.range_of(gradient), whole.range_of(gradient)) << index;
    kept = resumed.state(2);
  }
  std::vector<std::string> names;
  for (const auto& item : kept) names.push_back(item.first);
  EXPECT_THAT(names, ElementsAre("range@2/cut12.gradient10", "range@2/cut3.activation0"));
}

TEST(CutRanges, AReplicaTakesItsOwnEntries) {
  CutRanges ranges({.steps = 1, .every = 0, .limit = 100, .percentile = 100});
  step(ranges, 1, {{kOne, 3.0f}});
  std::map<std::string, at::Tensor> state = ranges.state(1);
  state["momentum/fc1.weight"] = at::zeros({2, 2});
  CutRanges other({.steps = 1, .every = 0, .limit = 100, .percentile = 100});
  other.load(state, 0);
  EXPECT_EQ(other.range_of(kOne), 0);
  other.load(state, 1);
  EXPECT_EQ(other.range_of(kOne), 3.0f);
  state["range@1/cut3.activation0"] = at::zeros({2});
  EXPECT_THROW(other.load(state, 1), Error);
  EXPECT_THROW(other.load({{"range@1/x", at::zeros({3})}}, 1), Error);
}

}  // namespace
}  // namespace starling
