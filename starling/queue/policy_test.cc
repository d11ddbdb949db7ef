#include "starling/queue/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "starling/base/keyed_random.h"
#include "starling/queue/simulated_day.h"
#include "starling/queue/usage.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

PolicyState one_host(int slots, std::vector<PolicyJob> jobs) {
  PolicyState state;
  state.hosts = {{"a", slots}};
  for (const PolicyJob& job : jobs) state.users[job.user] = {};
  state.jobs = std::move(jobs);
  return state;
}

PolicyJob queued(int64_t id, int slots, const std::string& user = "ada") {
  return {.id = id, .user = user, .slots = slots, .queued_s = static_cast<double>(id), .remaining_s = 100};
}

PolicyJob running(int64_t id, int slots, double rest, const std::string& user = "bert") {
  PolicyJob job{.id = id, .user = user, .slots = slots, .remaining_s = rest, .phase = PolicyPhase::kRunning};
  job.parts = {{0, slots}};
  return job;
}

std::vector<int64_t> started(const PolicyDecision& decision) {
  std::vector<int64_t> ids;
  for (const PolicyStart& start : decision.starts) ids.push_back(start.id);
  return ids;
}

TEST(Policy, AJobGetsAllItsSlotsOrNone) {
  const PolicyState state = one_host(4, {queued(1, 3), queued(2, 2), queued(3, 1)});
  QueuePolicyOptions options;
  const PolicyDecision decision = decide(state, options, 10);
  // Job 2 waits for the end of job 1, and job 3 ends by then.
  EXPECT_THAT(started(decision), ElementsAre(1, 3));
  EXPECT_THAT(decision.starts[0].parts, ElementsAre(HostPart{0, 3}));
}

TEST(Policy, PlacesAJobOnTheFewestHosts) {
  EXPECT_THAT(place({4, 2, 3}, 2), ElementsAre(HostPart{1, 2}));
  EXPECT_THAT(place({4, 2, 3}, 3), ElementsAre(HostPart{2, 3}));
  EXPECT_THAT(place({4, 2, 3}, 6), ElementsAre(HostPart{0, 4}, HostPart{2, 2}));
  EXPECT_THAT(place({4, 2, 3}, 9), ElementsAre(HostPart{0, 4}, HostPart{1, 2}, HostPart{2, 3}));
  EXPECT_THAT(place({4, 2, 3}, 10), IsEmpty());
}

TEST(Policy, OrdersByAgePriorityShareAndSubmission) {
  PolicyState state = one_host(1, {queued(1, 1, "ada"), queued(2, 1, "bert"), queued(3, 1, "cleo")});
  state.users = {{"ada", {1, 500}}, {"bert", {4, 1000}}, {"cleo", {1, 400}}};
  QueuePolicyOptions options;
  EXPECT_THAT(started(decide(state, options, 10)), ElementsAre(2));  // 250 per share
  state.jobs[2].priority = 1;
  EXPECT_THAT(started(decide(state, options, 10)), ElementsAre(3));
  EXPECT_THAT(started(decide(state, options, 1 + options.age_limit_s)), ElementsAre(1));
}

TEST(Policy, JobsOfOneUserDoNotStartAllTogether) {
  PolicyState state = one_host(2, {queued(1, 1, "ada"), queued(2, 1, "ada"), queued(3, 1, "bert")});
  EXPECT_THAT(started(decide(state, {}, 10)), ElementsAre(1, 3));
}

TEST(Policy, ALaterJobMustNotDelayTheReservation) {
  PolicyState state = one_host(4, {running(1, 2, 50), queued(2, 4), queued(3, 2)});
  state.users["ada"].usage = 0;
  QueuePolicyOptions options;
  options.preempts = false;
  EXPECT_THAT(started(decide(state, options, 10)), IsEmpty());  // job 3 would run for 100 s
  state.jobs[2].remaining_s = 50;
  EXPECT_THAT(started(decide(state, options, 10)), ElementsAre(3));
  state.jobs[2].remaining_s = 1000;
  state.jobs[1].slots = 3;  // one slot is left over beside the reserved job
  state.jobs[2].slots = 1;
  EXPECT_THAT(started(decide(state, options, 10)), ElementsAre(3));
}

TEST(Policy, PreemptsForAPriorityAndOnlyWhatIsNeeded) {
  PolicyState state =
      one_host(4, {running(1, 1, 9000), running(2, 2, 9000), running(3, 1, 9000), queued(4, 2)});
  state.jobs[0].started_s = 5;  // began last of the running jobs
  state.jobs[3].priority = 1;
  QueuePolicyOptions options;
  const double now = 5 + options.min_run_s;
  EXPECT_THAT(decide(state, options, now).preempted, ElementsAre(2));
  EXPECT_THAT(decide(state, options, now - 1).preempted, ElementsAre(2));
  state.jobs[1].priority = 1;
  EXPECT_THAT(decide(state, options, now).preempted, ElementsAre(1, 3));
  EXPECT_THAT(decide(state, options, now - 1).preempted, IsEmpty());  // job 1 has not run for long enough
  options.preempts = false;
  EXPECT_THAT(decide(state, options, now).preempted, IsEmpty());
}

TEST(Policy, NoSecondPreemptionWhileSlotsAreComing) {
  PolicyState state = one_host(2, {running(1, 1, 9000), running(2, 1, 9000), queued(3, 1)});
  state.jobs[2].priority = 1;
  state.jobs[0].phase = PolicyPhase::kStopping;
  const PolicyDecision decision = decide(state, {}, 9000);
  EXPECT_THAT(decision.preempted, IsEmpty());
  EXPECT_THAT(decision.starts, IsEmpty());
}

TEST(Policy, PreemptsAUserFarAboveTheShare) {
  PolicyState state = one_host(2, {running(1, 2, 90000, "bert"), queued(2, 1, "ada")});
  QueuePolicyOptions options;
  const double now = 4000;
  state.users["ada"] = {1, 0};
  state.users["bert"] = {1, 3 * options.min_run_s};
  EXPECT_THAT(decide(state, options, now).preempted, ElementsAre(1));
  state.users["bert"].share = 3;
  EXPECT_THAT(decide(state, options, now).preempted, IsEmpty());
}

TEST(Policy, AnOverdueJobPreemptsYoungerJobsOnly) {
  PolicyState state = one_host(1, {running(1, 1, 90000), queued(2, 1)});
  QueuePolicyOptions options;
  const double now = 2 + options.age_limit_s;
  state.users["ada"].usage = 1e9;
  state.jobs[0].queued_s = 3;
  EXPECT_THAT(decide(state, options, now).preempted, ElementsAre(1));
  state.jobs[0].queued_s = 1;
  EXPECT_THAT(decide(state, options, now).preempted, IsEmpty());
}

TEST(Usage, LosesHalfAfterAHalfLife) {
  DecayedUsage usage;
  usage.add(3, 0, 10, 1e9);
  EXPECT_NEAR(usage.amount, 30, 1e-6);
  usage.decay_to(10 + 1e9, 1e9);
  EXPECT_NEAR(usage.amount, 15, 1e-6);
  // A sum in small steps, from the definition.
  double sum = 0;
  const double step = 1e-3;
  for (double t = step / 2; t < 40; t += step) sum += 2 * step * std::exp2(-(40 - t) / 20);
  EXPECT_NEAR(usage_of(2, 0, 40, 20), sum, 1e-6);
  EXPECT_EQ(usage_of(2, 40, 30, 20), 0);
}

// A plain simulation of EASY backfill for one user in steps of one second: jobs in the order of submission,
// expected times that are exact, no preemption. Returns the times of the starts.
std::vector<double> plain_backfill(const std::vector<DayJob>& jobs, int slots) {
  std::vector<double> starts(jobs.size(), -1);
  size_t begun = 0;
  for (double now = 0; begun < jobs.size(); now += 1) {
    const auto free_at = [&](double time) {
      int free = slots;
      for (size_t j = 0; j < jobs.size(); ++j)
        if (starts[j] >= 0 && starts[j] + jobs[j].run_s > time) free -= jobs[j].slots;
      return free;
    };
    double reserved = -1;
    int reserved_slots = 0;
    for (size_t j = 0; j < jobs.size(); ++j) {
      if (starts[j] >= 0 || jobs[j].submitted_s > now) continue;
      bool goes = jobs[j].slots <= free_at(now);
      if (goes && reserved >= 0) {  // tries the start and looks whether the reservation still holds
        starts[j] = now;
        goes = free_at(reserved) >= reserved_slots;
        starts[j] = -1;
      }
      if (goes) {
        starts[j] = now;
        ++begun;
      } else if (reserved < 0) {
        reserved = now;
        while (free_at(reserved) < jobs[j].slots) reserved += 1;
        reserved_slots = jobs[j].slots;
      }
    }
  }
  return starts;
}

TEST(Policy, EqualsAPlainSimulationOfBackfill) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Day day;
    day.shares["ada"] = 1;
    double submitted = 0;
    auto draw = [&, n = uint64_t{0}](int least, int most) mutable {
      return least + static_cast<int>((most - least + 1) * uniform_of(key_of(seed, 7, n++)));
    };
    for (int64_t id = 0; id < 40; ++id) {
      submitted += draw(0, 10);
      DayJob job{.id = id, .user = "ada", .slots = draw(1, 8), .submitted_s = submitted};
      job.run_s = job.expected_s = draw(1, 60);
      day.jobs.push_back(job);
    }
    DayOptions options;
    options.hosts = {{"a", 5}, {"b", 4}};
    QueuePolicyOptions policy;
    policy.preempts = false;
    policy.age_limit_s = 1e9;
    const DayResult result = simulate_day(options, day, policy);
    const std::vector<double> expected = plain_backfill(day.jobs, 9);
    for (size_t j = 0; j < day.jobs.size(); ++j)
      ASSERT_EQ(result.jobs[j].started_s, expected[j]) << "seed " << seed << ", job " << j;
  }
}

}  // namespace
}  // namespace starling
