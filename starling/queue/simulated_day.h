// A generated day of a shared cluster, and its simulation by discrete events.
//
// The simulation calls the policy of the daemon (policy.h) after every event. A preempted job holds its slots
// while it writes a checkpoint, and computes nothing while it reads the checkpoint later. Neither time counts
// as busy.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "starling/queue/policy.h"

namespace starling {

// The size of the day. Times are in seconds.
struct DayOptions {
  std::vector<HostSlots> hosts = {{"h1", 16}, {"h2", 16}, {"h3", 16}, {"h4", 16}};
  double length_s = 86400;  // jobs arrive during this time
  double load = 1.2;        // work of all jobs divided by the slot-seconds of the day
  int largest = 32;         // slots of the largest job
  double shortest_s = 120;  // of the run times
  double median_s = 1200;
  double longest_s = 3 * 3600;
  double save_s = 30;     // to write a checkpoint
  double restore_s = 60;  // to start again from a checkpoint
  uint64_t seed = 1;
};

// A job of the day.
struct DayJob {
  int64_t id = 0;
  std::string user;
  int slots = 1;
  int priority = 0;
  double submitted_s = 0;
  double run_s = 0;       // computation without checkpoints
  double expected_s = 0;  // what its user says
};

// The users and jobs of a day. It is a function of the options.
struct Day {
  std::map<std::string, double> shares;
  std::vector<DayJob> jobs;  // in the order of submission
};
Day generate_day(const DayOptions& options);

// What the simulation shows of a job. Times are -1 until they are known.
struct DayJobEnd {
  double started_s = -1;  // of the first run
  double ended_s = -1;
  double longest_wait_s = 0;  // from submission or preemption to the start
  int preemptions = 0;
};

// What the simulation shows.
struct DayResult {
  double busy = 0;         // share of the slots that computed while a job waited, within the day
  double occupied = 0;     // as `busy`, with the slots of jobs that write or read checkpoints
  double backlog_s = 0;    // how long at least one job waited, within the day
  double jain = 0;         // of service divided by fluid_service(), over the users, within the day
  double mean_wait_s = 0;  // from submission to the first start, over all jobs
  double p95_wait_s = 0;
  double longest_wait_s = 0;    // of all waits, with those after a preemption
  double checkpoint_share = 0;  // slot-seconds of checkpoints divided by those of computation
  int64_t preemptions = 0;
  double end_s = 0;                       // when the last job ended
  std::map<std::string, double> service;  // slot-seconds of computation within the day, by user
  std::map<std::string, double> fair;     // the same by fluid_service()
  std::vector<DayJobEnd> jobs;            // as Day::jobs
};

// Simulates the day until all jobs have ended. `watch` is called after each decision with the state before
// it; it may be empty.
DayResult simulate_day(
    const DayOptions& options, const Day& day, const QueuePolicyOptions& policy,
    const std::function<void(const PolicyState&, const PolicyDecision&, double now_s)>& watch = {});

}  // namespace starling
