#include "starling/queue/daemon.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr double kLeastRest = 60;  // expected seconds of a queued job that has run longer than expected
constexpr double kScheduleS = 1;   // the policy is asked at least so often
constexpr int kRankLost = 4;       // the launcher's status if a rank was lost

// Returns true if a launcher ends so after SIGTERM, SIGINT or SIGHUP, as docs/reference/exit-statuses.md
// says.
bool is_interrupted(int status) {
  return status == 128 + SIGTERM || status == 128 + SIGINT || status == 128 + SIGHUP;
}

// Takes the slots from a job and adds the time of the attempt that has ended.
JobRecord without_slots(const JobRecord& job, double ended_s) {
  JobRecord after = job;
  after.ran_s += std::max(1e-6, ended_s - job.started_s);  // above 0, so that the attempt counts as ended
  after.hosts.clear();
  after.local_slots.clear();
  after.stop = StopReason::kNone;
  return after;
}

}  // namespace

Daemon::Daemon(const QueueFolder& folder, QueueStore& store, DaemonOptions options)
    : folder_(folder), store_(store), options_(std::move(options)), settings_(store.settings()) {}

size_t Daemon::turn() {
  read_jobs();
  for (const JobRecord& job : jobs_) attend(job.id, [&] { look(job); });
  read_jobs();
  if (changed_ || !scheduled_ || seconds_since(*scheduled_) >= kScheduleS) schedule();
  read_jobs();
  return jobs_.size();
}

void Daemon::read_jobs() {
  const int64_t version = store_.version();
  if (version == version_) return;
  jobs_ = store_.active();
  version_ = version;
  changed_ = true;
}

double Daemon::seconds_since(Nanoseconds then) const {
  return to_seconds(options_.clock->now() - then);
}

void Daemon::attend(int64_t id, const std::function<void()>& act) {
  try {
    act();
  } catch (const DatabaseBusy&) {
    throw;
  } catch (const Error& error) {
    std::string& last = problems_[id];
    if (last == error.what()) return;
    last = error.what();
    if (options_.on_problem) options_.on_problem(fmt::format("job {}: {}", id, last));
  }
}

AttemptFiles Daemon::files(const JobRecord& job) const {
  return {folder_.job_folder(job.id), job.attempt};
}

bool Daemon::move(const JobRecord& before, const JobRecord& after, const std::string& why) {
  const double now = options_.now_s();
  version_ = -1;
  if (!store_.move(before, after, now, why)) return false;
  if (options_.on_transition)
    options_.on_transition(after, {now, name_of(before.state), name_of(after.state), why});
  return true;
}

void Daemon::look(const JobRecord& job) {
  if (job.state == QueueJobState::kStarting) look_at_start(job);
  if (job.state == QueueJobState::kRunning || job.state == QueueJobState::kStopping) look_at_run(job);
}

void Daemon::look_at_start(const JobRecord& job) {
  const std::optional<ProcessName> keeper = claim_of(files(job));
  if (keeper && keeper->pid != 0) {
    JobRecord after = job;
    after.state = QueueJobState::kRunning;
    if (move(job, after, fmt::format("process {}", keeper->pid))) problems_.erase(job.id);
    return;
  }
  const auto forked = forked_.find(job.id);
  const bool ours = forked != forked_.end() && forked->second.attempt == job.attempt;
  if (!keeper && ours && seconds_since(forked->second.at) < options_.claim_s) return;
  if (!keeper && !void_claim(files(job))) return;  // the keeper came first
  JobRecord after = without_slots(job, job.started_s);
  const std::string why = "the attempt did not begin";
  // A daemon that was killed before fork() is no fault of the job.
  if (ours && ++after.losses >= options_.most_losses)
    return end(job, after, QueueJobState::kFailed, 128 + SIGKILL,
               fmt::format("{}, {} times: see {}/err, and whether the disk is full", why, after.losses,
                           folder_.job_folder(job.id)));
  requeue(job, after, why);
}

void Daemon::look_at_run(const JobRecord& job) {
  std::optional<AttemptEnd> end = end_of(files(job));
  const ProcessName keeper = claim_of(files(job)).value_or(ProcessName{});
  if (!end && !lives(keeper)) {
    end = end_of(files(job));  // the keeper may have written the record and ended since
    if (!end) return lose(job);
  }
  if (end) return finish(job, *end);
  if (job.state == QueueJobState::kStopping) return look_at_stop(job, keeper);
  if (job.cancel_asked) stop(job, StopReason::kCancelled);
}

void Daemon::look_at_stop(const JobRecord& job, const ProcessName& keeper) {
  // The time counts from this daemon's own signal: an earlier daemon may have died before it sent one.
  Signaled& signaled = signaled_[job.id];
  if (signaled.attempt != job.attempt) {
    send_signal(keeper, SIGTERM);
    signaled = {job.attempt, options_.clock->now(), false};
    if (options_.at) options_.at("signaled");
    return;
  }
  const double waited = seconds_since(signaled.at);
  if (waited >= options_.grace_s && !signaled.repeated) {
    send_signal(keeper, SIGINT);
    signaled.repeated = true;
  }
  if (waited >= options_.grace_s + options_.kill_s) send_signal(keeper, SIGKILL);
}

void Daemon::finish(const JobRecord& job, const AttemptEnd& ended) {
  const bool stopping = job.state == QueueJobState::kStopping;
  const bool cancelled = stopping && (job.cancel_asked || job.stop == StopReason::kCancelled);
  // No daemon may have run since the end, and that time is not charged.
  JobRecord after =
      without_slots(job, std::clamp(ended.ended_s, job.started_s, std::max(job.started_s, options_.now_s())));
  if (ended.status == 0) return end(job, after, QueueJobState::kDone, 0, "ended with status 0");
  const std::string why =
      ended.message.empty() ? fmt::format("ended with status {}", ended.status) : ended.message;
  if (cancelled)
    return end(job, after, QueueJobState::kCancelled, ended.status, "cancelled by the user; " + why);
  const bool interrupted = is_interrupted(ended.status);
  if (!stopping && ended.told && interrupted) return requeue(job, after, "interrupted from outside; " + why);
  // A rank that SIGTERM reaches before it handles the signal counts as lost.
  if (!stopping || !(interrupted || ended.status == kRankLost))
    return end(job, after, QueueJobState::kFailed, ended.status, why);
  ++after.preemptions;
  requeue(job, after, "preempted; " + why);
}

void Daemon::lose(const JobRecord& job) {
  JobRecord after = without_slots(job, options_.now_s());
  if (job.state == QueueJobState::kStopping && (job.cancel_asked || job.stop == StopReason::kCancelled))
    return end(job, after, QueueJobState::kCancelled, 128 + SIGKILL,
               "cancelled by the user; the processes were killed");
  const std::string why = "the processes disappeared without a record of their end";
  if (job.state == QueueJobState::kStopping) {
    ++after.preemptions;
    return requeue(job, after, "preempted; " + why);
  }
  if (++after.losses >= options_.most_losses)
    return end(job, after, QueueJobState::kFailed, 128 + SIGKILL,
               fmt::format("{}, {} times", why, after.losses));
  requeue(job, after, why);
}

void Daemon::requeue(const JobRecord& job, JobRecord after, const std::string& why) {
  after.state = QueueJobState::kQueued;
  after.queued_s = options_.now_s();
  move(job, after, why);
  forget(job.id);
}

void Daemon::end(const JobRecord& job, JobRecord after, QueueJobState state, int status,
                 const std::string& why) {
  after.state = state;
  after.status = status;
  after.ended_s = job.started_s + (after.ran_s - job.ran_s);
  move(job, after, why);
  forget(job.id);
  problems_.erase(job.id);
}

void Daemon::forget(int64_t id) {
  forked_.erase(id);
  signaled_.erase(id);
}

void Daemon::stop(const JobRecord& job, StopReason reason) {
  JobRecord after = job;
  after.state = QueueJobState::kStopping;
  after.stop = reason;
  after.stopped_s = options_.now_s();
  const bool cancelled = reason == StopReason::kCancelled;
  if (move(job, after, cancelled ? "cancelled by the user" : "makes room for another job"))
    look_at_stop(after, claim_of(files(job)).value_or(ProcessName{}));
}

PolicyState Daemon::state_of(double now_s) {
  PolicyState state;
  state.hosts = settings_.hosts;
  std::map<std::string, DecayedUsage> usage = store_.usage();
  for (const JobRecord& record : jobs_) {
    const auto known = settings_.users.find(record.user);
    PolicyUser& user = state.users[record.user];
    user.share = known == settings_.users.end() ? 1 : known->second.share;
    PolicyJob job{.id = record.id,
                  .user = record.user,
                  .slots = record.slots,
                  .priority = record.priority,
                  .queued_s = record.queued_s};
    job.remaining_s = record.expected_s - record.ran_s;
    if (holds_slots(record.state)) {
      job.phase = record.state == QueueJobState::kStopping ? PolicyPhase::kStopping : PolicyPhase::kRunning;
      job.started_s = record.started_s;
      job.remaining_s -= now_s - record.started_s;
      user.usage += usage_of(record.slots, record.started_s, now_s, settings_.half_life_s);
      for (const HostSlots& held : record.hosts)
        for (int host = 0; host < static_cast<int>(state.hosts.size()); ++host)
          if (state.hosts[static_cast<size_t>(host)].name == held.name)
            job.parts.push_back({host, held.slots});
    } else {
      job.remaining_s = std::max(job.remaining_s, kLeastRest);
      if (record.cancel_asked) continue;
    }
    state.jobs.push_back(std::move(job));
  }
  for (auto& [name, user] : state.users) {
    usage[name].decay_to(now_s, settings_.half_life_s);
    user.usage += usage[name].amount;
  }
  return state;
}

void Daemon::schedule() {
  taken_.clear();
  const auto by_id = [this](int64_t id) -> const JobRecord& {
    return *std::find_if(jobs_.begin(), jobs_.end(), [id](const JobRecord& job) { return job.id == id; });
  };
  for (const JobRecord& job : jobs_)
    if (job.state == QueueJobState::kQueued && job.cancel_asked) {
      JobRecord after = job;  // its user asked while it made room for another job
      after.state = QueueJobState::kCancelled;
      after.ended_s = options_.now_s();
      move(job, after, "cancelled by the user");
    }
  const double now = options_.now_s();
  const PolicyDecision decision = decide(state_of(now), options_.policy, now);
  for (const PolicyStart& chosen : decision.starts)
    attend(chosen.id, [&] { start(by_id(chosen.id), chosen.parts); });
  for (const int64_t id : decision.preempted)  // a job that is starting makes room later
    if (by_id(id).state == QueueJobState::kRunning)
      attend(id, [&] { stop(by_id(id), StopReason::kPreempted); });
  changed_ = false;
  scheduled_ = options_.clock->now();
}

std::vector<int> Daemon::local_slots(const JobRecord& job) const {
  std::vector<int> used = taken_, given;
  for (const JobRecord& other : jobs_)
    used.insert(used.end(), other.local_slots.begin(), other.local_slots.end());
  for (const HostSlots& part : job.hosts) {
    if (part.name != kThisHost) continue;
    for (int slot = 0; static_cast<int>(given.size()) < part.slots; ++slot)
      if (std::find(used.begin(), used.end(), slot) == used.end()) given.push_back(slot);
  }
  return given;
}

void Daemon::start(const JobRecord& listed, const std::vector<HostPart>& parts) {
  if (fork_failed_ && seconds_since(*fork_failed_) < options_.fork_pause_s) return;
  const std::optional<JobRecord> job = store_.job(listed.id);  // with its words and its environment
  if (!job || job->state != QueueJobState::kQueued) return;    // it was cancelled meanwhile
  JobRecord after = *job;
  after.state = QueueJobState::kStarting;
  ++after.attempt;
  after.started_s = options_.now_s();
  for (const HostPart& part : parts)
    after.hosts.push_back({settings_.hosts[static_cast<size_t>(part.host)].name, part.slots});
  after.local_slots = local_slots(after);
  folder_.make_job_folder(job->id);
  if (!move(*job, after, fmt::format("attempt {}", after.attempt))) return;  // it was cancelled meanwhile
  taken_.insert(taken_.end(), after.local_slots.begin(), after.local_slots.end());
  forked_[job->id] = {after.attempt, options_.clock->now()};
  try {
    start_keeper(order_of(after));
  } catch (const Error&) {
    forked_.erase(job->id);  // the next turn queues the job again
    fork_failed_ = options_.clock->now();
    throw;
  }
  if (options_.at) options_.at("forked");
}

KeeperOrder Daemon::order_of(const JobRecord& job) const {
  KeeperOrder order;
  order.files = files(job);
  order.program = options_.program;
  order.argv = options_.argv(job);
  order.folder = job.folder;
  order.environment = job.environment;
  order.mask = options_.mask;
  for (const int slot : job.local_slots) {
    if (static_cast<size_t>(slot) >= options_.cpus.size()) continue;
    const std::vector<int>& cpus = options_.cpus[static_cast<size_t>(slot)];
    order.cpus.insert(order.cpus.end(), cpus.begin(), cpus.end());
  }
  return order;
}

}  // namespace starling
