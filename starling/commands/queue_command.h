// The commands `starling queue …`: a queue of jobs for a shared cluster (queue/daemon.h,
// docs/how-to/queue.md). Each returns 0. Errors: ConfigError for wrong options, and Error (kCheckpoint) if
// the state cannot be read or written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/commands/commands.h"

namespace starling {

// The options of `queue serve`.
struct QueueServeOptions {
  std::string state;         // the folder of the queue
  std::string hosts;         // "a:4,b:4"; empty: this host, with one slot per core
  std::string users;         // "ada:2,bert"; empty: every user, with equal shares
  double half_life_h = 168;  // hours after which past usage counts half
  double age_limit_h = 4;    // hours of waiting after which a job precedes all younger ones
  double min_run_min = 30;   // minutes that a job runs before it is preempted
  double grace_s = 120;      // seconds from SIGTERM until the ranks are killed
  bool until_empty = false;  // end when no job is left
};
// Runs the daemon until SIGTERM or Ctrl-C, or until no job is left. Jobs that run go on without it. Prints
// each transition unless -q is given. Throws ConfigError if another daemon serves the folder.
int queue_serve_command(const QueueServeOptions& serve, const CommandOptions& options);

// The options of `queue submit`.
struct QueueSubmitOptions {
  std::string state;
  std::string user;  // empty: the name of this account
  int ranks = 1;     // slots
  int priority = 0;
  double expected_min = 60;              // minutes that the job will take
  std::vector<std::string> words;        // the program and its arguments, as behind `starling launch`
  std::vector<std::string> environment;  // NAME=VALUE, of the job
};
// Adds a job and prints its number.
int queue_submit_command(const QueueSubmitOptions& submit, const CommandOptions& options);

// Prints the jobs that have not ended, or with `all` all jobs.
int queue_list_command(const std::string& state, bool all, const CommandOptions& options);
// Prints one job with the log of its transitions.
int queue_show_command(const std::string& state, int64_t job, const CommandOptions& options);
// Cancels jobs. A job that has ended stays as it is.
int queue_cancel_command(const std::string& state, const std::vector<int64_t>& jobs,
                         const CommandOptions& options);

// The options of `queue simulate`.
struct QueueSimulateOptions {
  int seeds = 5;  // days, with the seeds seed, seed + 1, …
  uint64_t seed = 1;
  double load = 1.2;      // work of all jobs divided by what the slots can do in a day
  int largest = 32;       // slots of the largest job
  double save_s = 30;     // time to write a checkpoint
  double restore_s = 60;  // time to start from a checkpoint
  double age_limit_h = 4;
  double min_run_min = 30;
  bool no_preemption = false;
};
// Simulates days of a cluster with 64 slots by the policy of the daemon, and prints a table.
int queue_simulate_command(const QueueSimulateOptions& simulate, const CommandOptions& options);

}  // namespace starling
