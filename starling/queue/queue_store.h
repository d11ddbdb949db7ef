// The state of a queue in a SQLite file: the hosts, the users, the jobs and the log of their transitions.
//
// Each transition is one transaction, which is on the disk when the call returns (synchronous=FULL). The
// daemon and its clients open the file at once. A transition names the state that it leaves, so that of two
// processes that want to change one job only the first does. A process that reads the file does not wait for
// one that writes it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "starling/queue/job_record.h"
#include "starling/queue/usage.h"
#include "starling/spec/hosts.h"
#include "starling/telemetry/database.h"

namespace starling {

// A user of the cluster.
struct QueueUser {
  double share = 1;       // relative to other users
  int most_priority = 0;  // the largest priority that the user's jobs may have
};

// What the daemon was started with.
struct QueueSettings {
  std::vector<HostSlots> hosts;
  std::map<std::string, QueueUser> users;  // empty: every user is accepted, with the share 1
  double half_life_s = 7 * 86400;          // of the usage
};

// Parses "ada:2,bert,cleo:1:5": NAME[:SHARE[:PRIORITY]]. Throws ConfigError that names --users.
std::map<std::string, QueueUser> parse_queue_users(std::string_view text);

class QueueStore {
 public:
  // Opens the file. `creates`: makes the file and its tables if they are missing. Without it, a missing file
  // is a ConfigError, which says how to start the daemon. Errors of all methods: Error (kCheckpoint) if
  // SQLite fails.
  QueueStore(const std::string& path, bool creates);

  // Stores what the daemon was started with. Throws ConfigError if the hosts change while jobs hold slots, or
  // if a job that waits no longer fits.
  void put_settings(const QueueSettings& settings);
  QueueSettings settings();

  // Adds a job in the state queued and returns its number. `now_s` is the time of submission. Throws
  // ConfigError if the user is unknown, the job is larger than the cluster, its priority is too large, or a
  // text of it is not UTF-8.
  int64_t submit(JobRecord job, double now_s);
  // Cancels a queued job at once, and asks the daemon to stop a job that holds slots. Returns the state that
  // the job had. Throws ConfigError if there is no such job.
  QueueJobState cancel(int64_t id, double now_s);

  // The jobs that have not ended, by number. Their words, folders and environments are empty, because the
  // daemon reads this list often.
  std::vector<JobRecord> active();
  // All jobs, or all that have not ended, by number.
  std::vector<JobRecord> all(bool ended = true);
  std::optional<JobRecord> job(int64_t id);
  std::vector<JobTransition> log(int64_t id);
  // The decayed usage of every user who had a job.
  std::map<std::string, DecayedUsage> usage();

  // Returns a number that changes when another process has changed the file.
  int64_t version();

  // Changes the job from `before` to `after` in one transaction, and adds a row to the log. An attempt that
  // ends is added to the usage of the user: it lasted from started_s for as long as ran_s has grown. Returns
  // false, and changes nothing, if the job has left the state or the attempt of `before`.
  bool move(const JobRecord& before, const JobRecord& after, double now_s, const std::string& why);

  // Called by move() with "queued>starting before" and "queued>starting after" the commit, for tests that
  // kill the process there.
  std::function<void(const std::string& point)> at;

 private:
  void charge(const JobRecord& job, double ended_s);
  int64_t schema_version();
  void note(int64_t id, double now_s, const std::string& from, const std::string& to, const std::string& why);

  Database db_;
};

}  // namespace starling
