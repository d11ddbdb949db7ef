// The policy of a queue decides which jobs of a shared cluster start and which write a checkpoint and make
// room.
//
// decide() is a function of the jobs, the users, the hosts and the time. It has no clock, no threads and no
// files, so the daemon (daemon.h) and the simulated day (simulated_day.h) use equal rules. The rules, in
// their order:
//
// - gang: A job starts with all of its slots or not at all.
// - aging: A job that has waited for age_limit_s precedes all jobs that have not, oldest first.
// - priority: A larger priority precedes a smaller one.
// - fair share: Then the user with the smallest decayed usage per share precedes (usage.h).
// - backfill: The first job that does not fit gets a reservation. The reservation is the earliest time at
//   which running jobs leave enough slots. A later job may start only if it does not delay the reservation
//   (EASY: Lifka, The ANL/IBM SP Scheduling System, 1995).
// - preemption: If the reservation is far away, running jobs write checkpoints and make room. They do so for
// a
//   job of a larger priority, for a job that has reached age_limit_s and is older, and for a user who stays
//   below the share of their user. A job runs for min_run_s before it is preempted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "starling/spec/hosts.h"

namespace starling {

// The numbers of the rules. Times are in seconds.
struct QueuePolicyOptions {
  double half_life_s = 7 * 86400;  // of the usage
  double age_limit_s = 4 * 3600;   // after so long a wait a job precedes all younger ones
  double min_run_s = 1800;         // a job runs for so long before it is preempted
  double patience_s = 300;         // no job is preempted for a job that will start within this time anyway
  double save_s = 30;              // expected time from the request to stop until the slots are free
  double overrun_s = 300;          // expected rest of a job that has run longer than expected
  bool preempts = true;            // false: running jobs are never stopped
};

// Slots on one host, by its index.
struct HostPart {
  int host = 0;
  int slots = 0;
  bool operator==(const HostPart&) const = default;
};

// What holds for a job that has not ended.
enum class PolicyPhase {
  kQueued,
  kRunning,
  kStopping,  // it was told to stop and still holds its slots
};

// A job as the policy sees it. Times are seconds of the clock of decide()'s argument now_s.
struct PolicyJob {
  int64_t id = 0;
  std::string user;
  int slots = 1;
  int priority = 0;
  double queued_s = 0;     // when the present or, for a job that runs, the last wait began
  double remaining_s = 0;  // expected run time that is left; may be negative
  PolicyPhase phase = PolicyPhase::kQueued;
  double started_s = 0;              // when the present run began
  std::vector<HostPart> parts = {};  // the slots that it holds; empty while it is queued
};

// A user as the policy sees it.
struct PolicyUser {
  double share = 1;  // relative to the shares of other users; above 0
  double usage = 0;  // decayed slot-seconds up to now_s, with those of jobs that run
};

// All that decide() reads. Every user of a job is in `users`.
struct PolicyState {
  std::vector<HostSlots> hosts;
  std::map<std::string, PolicyUser> users;
  std::vector<PolicyJob> jobs;
};

// A job that starts, and where.
struct PolicyStart {
  int64_t id = 0;
  std::vector<HostPart> parts;  // ascending by host
};

// What happens now.
struct PolicyDecision {
  std::vector<PolicyStart> starts;
  std::vector<int64_t> preempted;
};

// Returns the decisions for the time now_s. The slots of preempted jobs are not given away yet: they are free
// when a later state shows it.
PolicyDecision decide(const PolicyState& state, const QueuePolicyOptions& options, double now_s);

// Returns the number of slots of all hosts.
int slots_of(const std::vector<HostSlots>& hosts);

// Returns where a job of `slots` slots runs, given the free slots of each host. The job gets the host with
// the fewest free slots that suffice. If no host has enough, it gets all free slots of the hosts with the
// most. Returns an empty list if all hosts together have too few.
std::vector<HostPart> place(const std::vector<int>& free, int slots);

}  // namespace starling
