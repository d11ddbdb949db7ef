// The daemon of a queue starts jobs, stops them and records how they end.
//
// All that it knows is in the store (queue_store.h) and in the files of the attempts (keeper.h). It may be
// killed at any moment. A daemon that starts later finds the processes of all jobs again by their claims, and
// the ends of those that have ended meanwhile by their records. No job is lost and none runs twice at once.
// If the daemon is killed after one of these events, the next daemon does this:
//
// - queued → starting: It finds no claim, claims the attempt for nobody and queues the job again.
// - fork(): If it finds a claim, the job is running. Otherwise it does as above.
// - starting → running: It finds a claim and waits for the end.
// - running → stopping: It finds a claim and a process, and sends SIGTERM, which the keeper passes on once.
// - the end of the keeper: It finds a record of the end and makes the transition that is due.
#pragma once

#include <signal.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/queue/keeper.h"
#include "starling/queue/policy.h"
#include "starling/queue/queue_folder.h"
#include "starling/queue/queue_store.h"

namespace starling {

// How a daemon works.
struct DaemonOptions {
  QueuePolicyOptions policy;
  double grace_s = 120;      // from this daemon's SIGTERM until the keeper is asked to end the ranks
  double kill_s = 15;        // from there to SIGKILL
  double claim_s = 10;       // a keeper that has not claimed its attempt after so long never will
  double fork_pause_s = 10;  // no job starts for so long after the system had no process left
  int most_losses = 3;       // a job whose processes disappear, or never begin, so often has failed
  std::string program;       // path of the launcher
  // Returns the arguments of the launcher for a job that has slots, including argv[0].
  std::function<std::vector<std::string>(const JobRecord&)> argv;
  std::vector<std::vector<int>> cpus;  // of the slots of this host, "localhost"; empty: jobs are not pinned
  sigset_t mask{};                     // signal mask of the jobs
  std::function<double()> now_s;       // seconds since 1970, for what the store holds
  const Clock* clock = nullptr;  // for waiting, which must not depend on the time of day; outlives the daemon
  // Called after each transition; may be empty.
  std::function<void(const JobRecord& job, const JobTransition&)> on_transition;
  std::function<void(const std::string& problem)> on_problem;  // may be empty
  // Called with "forked" and "signaled" after these events, for tests that kill the process there.
  std::function<void(const std::string& point)> at;
};

// The name of the host on which the daemon runs, among the hosts of a queue. Jobs on it need no ssh.
inline constexpr const char* kThisHost = "localhost";

// The process must have one thread, because jobs start by fork().
class Daemon {
 public:
  // The store must have its settings. `folder` and `store` must outlive this object. Only this object may
  // change jobs by `store`, because it reads the jobs again after changes by other connections.
  Daemon(const QueueFolder& folder, QueueStore& store, DaemonOptions options);

  // Looks at all jobs once and does what is due. Returns the number of jobs that have not ended. Never waits.
  // The policy is asked if a job has changed, and at least once a second. A problem of one job is reported
  // once and stops no other job. Errors: those of QueueStore, after which turn() may be called again.
  size_t turn();

 private:
  // What this process has done for an attempt.
  struct Forked {
    int attempt = 0;
    Nanoseconds at{};
  };
  struct Signaled {
    int attempt = 0;
    Nanoseconds at{};  // of SIGTERM
    bool repeated = false;
  };

  void read_jobs();
  double seconds_since(Nanoseconds then) const;
  // Calls `act`, and reports an Error as a problem of the job.
  void attend(int64_t id, const std::function<void()>& act);
  AttemptFiles files(const JobRecord& job) const;
  bool move(const JobRecord& before, const JobRecord& after, const std::string& why);
  void look(const JobRecord& job);
  void look_at_start(const JobRecord& job);
  void look_at_run(const JobRecord& job);
  void look_at_stop(const JobRecord& job, const ProcessName& keeper);
  void finish(const JobRecord& job, const AttemptEnd& end);
  void lose(const JobRecord& job);
  void requeue(const JobRecord& job, JobRecord after, const std::string& why);
  void end(const JobRecord& job, JobRecord after, QueueJobState state, int status, const std::string& why);
  void forget(int64_t id);
  void stop(const JobRecord& job, StopReason reason);
  void schedule();
  PolicyState state_of(double now_s);
  void start(const JobRecord& listed, const std::vector<HostPart>& parts);
  KeeperOrder order_of(const JobRecord& job) const;
  std::vector<int> local_slots(const JobRecord& job) const;

  const QueueFolder& folder_;
  QueueStore& store_;
  const DaemonOptions options_;
  const QueueSettings settings_;
  std::vector<JobRecord> jobs_;              // those that have not ended, as of `version_`
  int64_t version_ = -1;                     // of the store, or -1 after a change by this process
  bool changed_ = true;                      // since the policy was asked
  std::optional<Nanoseconds> scheduled_;     // when the policy was asked
  std::optional<Nanoseconds> fork_failed_;   // when the system had no process left
  std::map<int64_t, Forked> forked_;         // of jobs that this process has started
  std::map<int64_t, Signaled> signaled_;     // of jobs that this process has told to stop
  std::map<int64_t, std::string> problems_;  // the last one that was reported, by job
  std::vector<int> taken_;                   // local slots that were given away since the jobs were read
};

}  // namespace starling
