#include "starling/optim/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

ScheduleSpec named(const std::string& name) {
  ScheduleSpec spec;
  spec.name = name;
  return spec;
}

std::vector<double> rates(const ScheduleSpec& spec, const ScheduleLength& length, int64_t n,
                          double lr = 0.4) {
  std::vector<double> all;
  for (int64_t it = 0; it < n; ++it) all.push_back(learning_rate(lr, spec, length, it));
  return all;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-15) << "step " << i;
}

TEST(Schedule, ConstantStays) {
  expect_near(rates({}, {.total_steps = 3}, 4), {0.4, 0.4, 0.4, 0.4});
}

// The numbers of this and the next three tests come from torch.optim.lr_scheduler of PyTorch 2.15.0.
TEST(Schedule, CosineEqualsPyTorch) {
  ScheduleSpec spec = named("cosine");
  spec.min_lr = 0.04;
  expect_near(rates(spec, {.total_steps = 10}, 11),
              {0.4, 0.3911901729331277, 0.36562305898749053, 0.32580134541264516, 0.27562305898749057,
               0.22000000000000003, 0.1643769410125095, 0.11419865458735487, 0.07437694101250948,
               0.04880982706687237, 0.04});
}

TEST(Schedule, PolyEqualsPyTorch) {
  const ScheduleSpec spec = named("poly");
  expect_near(rates(spec, {.total_steps = 10}, 10),
              {0.4, 0.37947331922020555, 0.35777087639996635, 0.3346640106136302, 0.30983866769659335,
               0.282842712474619, 0.25298221281347033, 0.21908902300206645, 0.17888543819998315,
               0.12649110640673517});
  EXPECT_EQ(learning_rate(0.4, spec, {.total_steps = 10}, 25), 0.0);
}

TEST(Schedule, StepEqualsPyTorch) {
  ScheduleSpec spec = named("step");
  spec.milestones = {1.5, 3};
  expect_near(rates(spec, {.total_steps = 8, .steps_per_epoch = 2}, 8),
              {0.4, 0.4, 0.4, 0.04, 0.04, 0.04, 0.004, 0.004});
}

TEST(Schedule, WarmupThenCosineEqualsPyTorch) {
  ScheduleSpec spec = named("cosine");
  spec.warmup_steps = 4;
  spec.min_lr = 0.04;
  expect_near(rates(spec, {.total_steps = 10}, 10),
              {0.1, 0.2, 0.3, 0.4, 0.4, 0.375884572681199, 0.31, 0.22, 0.13, 0.06411542731880104});
}

TEST(Schedule, MilestoneThatIsNoWholeNumberOfSteps) {
  ScheduleSpec spec = named("step");
  spec.milestones = {0.1};
  const ScheduleLength length{.total_steps = 30, .steps_per_epoch = 30};
  EXPECT_EQ(learning_rate(1.0, spec, length, 2), 1.0);
  EXPECT_EQ(learning_rate(1.0, spec, length, 3), 0.1);
  spec.milestones = {0.29};  // 0.29 * 100 is less than 29 in floating point
  const ScheduleLength hundred{.total_steps = 100, .steps_per_epoch = 100};
  EXPECT_EQ(learning_rate(1.0, spec, hundred, 28), 1.0);
  EXPECT_EQ(learning_rate(1.0, spec, hundred, 29), 0.1);
}

TEST(Schedule, ScalesWithTheGlobalBatch) {
  ScheduleSpec spec;
  spec.scale_base_batch = 64;
  EXPECT_DOUBLE_EQ(learning_rate(0.1, spec, {.total_steps = 1, .global_batch = 256}, 0), 0.4);
  spec.warmup_steps = 2;
  EXPECT_DOUBLE_EQ(learning_rate(0.1, spec, {.total_steps = 9, .global_batch = 256}, 0), 0.2);
}

TEST(Schedule, ScalesByTheRuleThatIsGiven) {
  ScheduleSpec spec;
  spec.scale_base_batch = 32;
  const ScheduleLength large{.total_steps = 1, .global_batch = 1024},
      same{.total_steps = 1, .global_batch = 32};
  spec.scale = "firecaffe";  // the rates that FireCaffe's section 5 gives for these two batches
  EXPECT_NEAR(learning_rate(0.01, spec, large, 0), 0.08, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate(0.01, spec, same, 0), 0.01);
  spec.scale = "sqrt";
  EXPECT_DOUBLE_EQ(learning_rate(0.01, spec, large, 0), 0.01 * std::sqrt(32.0));
  spec.scale = "cubic";
  EXPECT_THROW(learning_rate(0.01, spec, large, 0), ConfigError);
}

TEST(Schedule, SuggestsTheNearName) {
  try {
    learning_rate(0.1, named("cosin"), {.total_steps = 1}, 0);
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(),
                testing::HasSubstr("schedule.name: unknown schedule 'cosin', did you mean 'cosine'?"));
  }
}

TEST(Schedule, AShareOfTheRunIsItsWarmUpUnlessStepsAreGiven) {
  ScheduleSpec share, steps;
  share.name = steps.name = "cosine";
  share.warmup_share = 0.1;
  steps.warmup_steps = 4;
  const ScheduleLength length{40, 10, 64};
  for (int64_t it = 0; it < 40; ++it)
    EXPECT_EQ(learning_rate(0.2, share, length, it), learning_rate(0.2, steps, length, it)) << it;
  steps.warmup_share = 0.5;  // the steps win
  EXPECT_EQ(learning_rate(0.2, steps, length, 4), learning_rate(0.2, share, length, 4));
}

}  // namespace
}  // namespace starling
