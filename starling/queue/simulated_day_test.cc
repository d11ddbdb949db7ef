#include "starling/queue/simulated_day.h"

#include <gtest/gtest.h>

#include <numeric>

#include "starling/queue/fair_service.h"

namespace starling {
namespace {

TEST(FairService, JainsIndex) {
  EXPECT_DOUBLE_EQ(jain_index({2, 2, 2}), 1);
  EXPECT_DOUBLE_EQ(jain_index({1, 0, 0, 0}), 0.25);
  EXPECT_DOUBLE_EQ(jain_index({1, 3}), 0.8);
  EXPECT_DOUBLE_EQ(jain_index({}), 1);
}

TEST(FairService, DividesByWeightedMaxMin) {
  EXPECT_EQ(divide_fairly(12, {1, 2, 1}, {1, 100, 100}), (std::vector<double>{1, 22.0 / 3, 11.0 / 3}));
  EXPECT_EQ(divide_fairly(12, {1, 1}, {4, 5}), (std::vector<double>{4, 5}));
}

TEST(FairService, TheFluidServesUsersByTheirShares) {
  // Both have work for all of the time. One job of ada can use 2 slots only.
  const std::vector<FluidJob> jobs = {{"ada", 0, 2, 1000}, {"bert", 0, 8, 1000}, {"bert", 50, 8, 1000}};
  const auto service = fluid_service(jobs, {{"ada", 3}, {"bert", 1}}, 8, 100, 1);
  EXPECT_NEAR(service.at("ada"), 200, 1e-9);
  EXPECT_NEAR(service.at("bert"), 600, 1e-9);
}

class SimulatedDay : public testing::TestWithParam<uint64_t> {};

// The requirement on a shared cluster, with the costs of checkpoints counted.
TEST_P(SimulatedDay, SlotsAreBusySharesAreFairAndWaitsBounded) {
  DayOptions options;
  options.seed = GetParam();
  const Day day = generate_day(options);
  double work = 0;
  int largest = 0, smallest = 64;
  for (const DayJob& job : day.jobs) {
    work += job.slots * job.run_s;
    largest = std::max(largest, job.slots);
    smallest = std::min(smallest, job.slots);
  }
  EXPECT_NEAR(work / (64 * options.length_s), 1.2, 0.01);
  EXPECT_EQ(smallest, 1);
  EXPECT_EQ(largest, 32);
  QueuePolicyOptions policy;
  const DayResult result = simulate_day(options, day, policy);
  EXPECT_GE(result.busy, 0.9);
  EXPECT_GE(result.jain, 0.95);
  EXPECT_LE(result.longest_wait_s, 8 * 3600);
  EXPECT_GT(result.backlog_s, 12 * 3600);
  EXPECT_GT(result.preemptions, 0);
  EXPECT_GT(result.checkpoint_share, 0);
}

TEST_P(SimulatedDay, NoSlotIsGivenTwiceAndNoWorkIsLost) {
  DayOptions options;
  options.seed = GetParam();
  const Day day = generate_day(options);
  QueuePolicyOptions policy;
  const DayResult result = simulate_day(
      options, day, policy, [&](const PolicyState& state, const PolicyDecision& decision, double) {
        std::vector<int> used(state.hosts.size(), 0);
        for (const PolicyJob& job : state.jobs)
          for (const HostPart& part : job.parts) used[static_cast<size_t>(part.host)] += part.slots;
        for (const PolicyStart& start : decision.starts) {
          int slots = 0;
          for (const HostPart& part : start.parts) {
            used[static_cast<size_t>(part.host)] += part.slots;
            slots += part.slots;
          }
          ASSERT_EQ(slots, day.jobs[static_cast<size_t>(start.id)].slots);
        }
        for (size_t host = 0; host < used.size(); ++host) ASSERT_LE(used[host], state.hosts[host].slots);
      });
  for (size_t j = 0; j < day.jobs.size(); ++j) {
    const DayJobEnd& end = result.jobs[j];
    const double least = day.jobs[j].run_s + end.preemptions * (options.save_s + options.restore_s);
    ASSERT_GE(end.started_s, day.jobs[j].submitted_s);
    ASSERT_GE(end.ended_s - end.started_s, least - 1e-6) << "job " << j;
    if (end.preemptions == 0) {
      ASSERT_NEAR(end.ended_s - end.started_s, day.jobs[j].run_s, 1e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimulatedDay, testing::Values(1, 2, 3, 4, 5));

TEST(SimulatedDays, ADayIsAFunctionOfItsSeed) {
  DayOptions options;
  const Day a = generate_day(options), b = generate_day(options);
  ASSERT_EQ(a.jobs.size(), b.jobs.size());
  EXPECT_EQ(a.jobs.back().run_s, b.jobs.back().run_s);
  options.seed = 2;
  EXPECT_NE(generate_day(options).jobs.back().run_s, a.jobs.back().run_s);
}

// Two jobs on one slot each, computed by hand: the second preempts the first.
TEST(SimulatedDays, CountsACheckpoint) {
  DayOptions options;
  options.hosts = {{"a", 1}};
  options.length_s = 10'000;
  Day day;
  day.shares = {{"ada", 1}};
  day.jobs = {{0, "ada", 1, 0, 0, 5000, 5000}, {1, "ada", 1, 1, 100, 1000, 1000}};
  QueuePolicyOptions policy;
  policy.min_run_s = 0;
  const DayResult result = simulate_day(options, day, policy);
  EXPECT_EQ(result.preemptions, 1);
  EXPECT_DOUBLE_EQ(result.jobs[1].started_s, 130);  // after a checkpoint of 30 s
  EXPECT_DOUBLE_EQ(result.jobs[1].ended_s, 1130);
  EXPECT_DOUBLE_EQ(result.jobs[0].ended_s, 1130 + 60 + 4900);  // 100 s were computed before
  EXPECT_DOUBLE_EQ(result.checkpoint_share, 90.0 / 6000);
  EXPECT_DOUBLE_EQ(result.jobs[0].longest_wait_s, 1000);
  EXPECT_DOUBLE_EQ(result.backlog_s, 1030);
  EXPECT_NEAR(result.busy, 1000.0 / 1030, 1e-12);
}

}  // namespace
}  // namespace starling
