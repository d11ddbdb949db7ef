#include "starling/commands/queue_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "starling/base/error.h"
#include "starling/launch/child_program.h"
#include "starling/launch/cpu_share.h"
#include "starling/launch/signal_watch.h"
#include "starling/queue/daemon.h"
#include "starling/queue/simulated_day.h"
#include "starling/run/message/dry_run.h"
#include "starling/spec/config.h"
#include "starling/spec/hosts.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"
#include "starling/telemetry/unix_time.h"

namespace starling {
namespace {

constexpr int kTurnMs = 100;

std::string account_name() {
  const passwd* entry = ::getpwuid(::geteuid());
  return entry == nullptr ? std::to_string(::geteuid()) : entry->pw_name;
}

std::vector<HostSlots> queue_hosts(const std::string& text) {
  if (!text.empty()) return parse_hosts(text);
  return {{kThisHost, std::max(1, count_cores(usable_cpus()))}};
}

// Divides the CPUs of this host among its slots. Returns an empty list if a slot would get none.
std::vector<std::vector<int>> cpus_of_slots(const std::vector<HostSlots>& hosts) {
  for (const HostSlots& host : hosts) {
    if (host.name != kThisHost) continue;
    const std::vector<Cpu> cpus = usable_cpus();
    const int cores = count_cores(cpus);
    return cores < host.slots ? cpu_shares(cpus, host.slots, 1)
                              : cpu_shares(cpus, host.slots, cores / host.slots);
  }
  return {};
}

// Returns true if a file of the configuration sets run.dir. The launcher reports a file that cannot be read.
bool file_names_run_dir(const std::filesystem::path& folder, const std::string& file) {
  try {
    Config config;
    apply_toml_file(config, (folder / file).string());
    return is_given(config.origins, "run.dir");
  } catch (const Error&) {
    return false;
  }
}

// Returns true if the command of the job names its run folder: by a flag, by --set or in a file of -c.
bool names_run_dir(const JobRecord& job) {
  const std::vector<std::string>& words = job.words;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.starts_with("--run-dir") || word.starts_with("run.dir=") || word.starts_with("--set=run.dir="))
      return true;
    std::string file;
    if (word == "-c" || word == "--config")
      file = i + 1 < words.size() ? words[i + 1] : "";
    else if (word.starts_with("--config="))
      file = word.substr(9);
    else if (word.starts_with("-c"))
      file = word.substr(2);
    if (!file.empty() && file_names_run_dir(job.folder, file)) return true;
  }
  return false;
}

// Returns the command line of a job: `starling launch -n N [--hosts …] WORDS`. Training goes on after a
// preemption only if each attempt has the same run folder.
std::vector<std::string> launch_words(const QueueFolder& folder, const JobRecord& job) {
  std::vector<std::string> words = {"starling", "launch", "-n", std::to_string(job.slots)};
  if (job.hosts.size() != 1 || job.hosts.front().name != kThisHost) {
    std::vector<std::string> hosts;
    for (const HostSlots& host : job.hosts) {
      const bool bare = host.name.find(':') != std::string::npos && !host.name.ends_with(']');
      hosts.push_back(fmt::format("{}:{}", bare ? "[" + host.name + "]" : host.name, host.slots));
    }
    words.insert(words.end(), {"--hosts", fmt::format("{}", fmt::join(hosts, ","))});
  }
  words.insert(words.end(), job.words.begin(), job.words.end());
  if (job.words.front() == "train" && !names_run_dir(job))
    words.insert(words.end(), {"--run-dir", folder.job_folder(job.id) + "/run"});
  return words;
}

nlohmann::ordered_json json_of(const JobRecord& job) {
  nlohmann::ordered_json json{{"event", "job"},
                              {"job", job.id},
                              {"user", job.user},
                              {"slots", job.slots},
                              {"priority", job.priority},
                              {"state", name_of(job.state)},
                              {"attempt", job.attempt},
                              {"preemptions", job.preemptions},
                              {"submitted", job.submitted_s},
                              {"ran_s", job.ran_s},
                              {"words", job.words}};
  if (is_final(job.state)) json["ended"] = job.ended_s;
  if (job.status >= 0) json["status"] = job.status;
  return json;
}

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string state_text(const JobRecord& job) {
  if (job.state != QueueJobState::kFailed) return name_of(job.state);
  return fmt::format("failed ({})", job.status);
}

double runs_for(const JobRecord& job) {
  return job.ran_s + (holds_slots(job.state) ? std::max(0.0, unix_time_s() - job.started_s) : 0);
}

std::string transition_line(const JobRecord& job, const JobTransition& step, bool json) {
  if (!json)
    return printable(fmt::format("job {} ({}, {} slots): {} -> {}, {}", job.id, job.user, job.slots,
                                 step.from, step.to, step.why));
  return dump({{"event", "transition"},
               {"job", job.id},
               {"from", step.from},
               {"to", step.to},
               {"why", step.why},
               {"time", step.at_s}});
}

void warn(const std::string& problem) {
  FdOutput(2).write("starling: warning: " + printable(problem) + "\n");
}

DaemonOptions daemon_options(const QueueServeOptions& serve, const QueueFolder& folder,
                             const QueueSettings& settings, const sigset_t& mask,
                             const CommandOptions& options) {
  DaemonOptions how;
  how.policy.half_life_s = settings.half_life_s;
  how.policy.age_limit_s = serve.age_limit_h * 3600;
  how.policy.min_run_s = serve.min_run_min * 60;
  how.policy.patience_s = std::min(how.policy.patience_s, how.policy.min_run_s);
  how.grace_s = serve.grace_s;
  how.program = own_program_path();
  how.argv = [&folder](const JobRecord& job) { return launch_words(folder, job); };
  how.cpus = cpus_of_slots(settings.hosts);
  how.mask = mask;
  how.now_s = unix_time_s;
  static const SystemClock clock;
  how.clock = &clock;
  if (options.verbosity >= 0)
    how.on_transition = [json = options.json](const JobRecord& job, const JobTransition& step) {
      print_line(transition_line(job, step, json));
    };
  how.on_problem = warn;
  return how;
}

// Looks at all jobs. If another process keeps the state locked, it warns once and the next turn tries again.
size_t turn(Daemon& daemon, size_t left, bool& warned) {
  try {
    left = daemon.turn();
    warned = false;
  } catch (const DatabaseBusy& error) {
    if (!warned) warn(error.what());
    warned = true;
  }
  return left;
}

// Returns false if the daemon shall end.
bool wait_for_turn(SignalWatch& signals) {
  pollfd descriptor{signals.fd(), POLLIN, 0};
  ::poll(&descriptor, 1, kTurnMs);
  while (const std::optional<int> signal = signals.take()) {
    if (*signal != SIGTSTP) return false;
    ::kill(::getpid(), SIGSTOP);
  }
  return true;
}

}  // namespace

int queue_serve_command(const QueueServeOptions& serve, const CommandOptions& options) {
  const QueueSettings settings{queue_hosts(serve.hosts), parse_queue_users(serve.users),
                               serve.half_life_h * 3600};
  std::vector<std::string> names;
  for (const HostSlots& host : settings.hosts) names.push_back(fmt::format("{}:{}", host.name, host.slots));
  const std::string what = fmt::format("{} of {} from {}", counted(slots_of(settings.hosts), "slot"),
                                       fmt::join(names, ","), serve.state);
  if (options.dry_run) {
    print_dry_run("would serve " + what, options.json);
    return 0;
  }
  SignalWatch signals;
  const QueueFolder folder(serve.state, true);
  const DaemonLock lock(folder);
  QueueStore store(folder.database(), true);
  store.put_settings(settings);
  Daemon daemon(folder, store, daemon_options(serve, folder, settings, signals.mask_before(), options));
  if (options.verbosity >= 0 && !options.json) print_line("serving " + what);
  if (options.verbosity >= 0 && options.json)
    print_line(dump({{"event", "serving"}, {"state", folder.path()}, {"slots", slots_of(settings.hosts)}}));
  bool warned = false;
  size_t left = turn(daemon, 1, warned);
  while (!(serve.until_empty && left == 0) && wait_for_turn(signals)) left = turn(daemon, left, warned);
  if (options.json) {
    print_line(dump({{"event", "result"}, {"jobs", left}}));
  } else if (options.verbosity >= 0) {
    print_line(left == 0 ? "no job is left" : fmt::format("{} jobs are left; those that run go on", left));
  }
  return 0;
}

int queue_submit_command(const QueueSubmitOptions& submit, const CommandOptions& options) {
  JobRecord job;
  job.user = submit.user.empty() ? account_name() : submit.user;
  job.slots = submit.ranks;
  job.priority = submit.priority;
  job.expected_s = submit.expected_min * 60;
  job.words = submit.words;
  job.folder = std::filesystem::current_path().string();
  job.environment = submit.environment;
  const std::string words = fmt::format("{}", fmt::join(job.words, " "));
  if (options.dry_run) {
    print_dry_run(
        printable(fmt::format("would submit for {} on {}: {}", job.user, counted(job.slots, "slot"), words)),
        options.json);
    return 0;
  }
  const QueueFolder folder(submit.state, false);
  const int64_t id = QueueStore(folder.database(), false).submit(job, unix_time_s());
  if (options.json) {
    print_line(dump({{"event", "result"}, {"job", id}, {"folder", folder.job_folder(id)}}));
  } else if (options.verbosity >= 0) {
    print_line(printable(fmt::format("job {} waits for {} slots: {}", id, job.slots, words)));
  }
  return 0;
}

int queue_list_command(const std::string& state, bool all, const CommandOptions& options) {
  const QueueFolder folder(state, false);
  QueueStore store(folder.database(), false);
  const std::vector<JobRecord> jobs = store.all(all);
  if (options.json) {
    for (const JobRecord& job : jobs) print_line(dump(json_of(job)));
    print_line(dump({{"event", "result"}, {"jobs", jobs.size()}}));
    return 0;
  }
  print_line(fmt::format("{:>5}  {:<10} {:>5} {:>8}  {:<12} {:>10}  command", "job", "user", "slots",
                         "priority", "state", "ran"));
  for (const JobRecord& job : jobs)
    print_line(printable(fmt::format("{:>5}  {:<10} {:>5} {:>8}  {:<12} {:>10}  {}", job.id, job.user,
                                     job.slots, job.priority, state_text(job), duration(runs_for(job)),
                                     fmt::join(job.words, " "))));
  return 0;
}

int queue_show_command(const std::string& state, int64_t id, const CommandOptions& options) {
  const QueueFolder folder(state, false);
  QueueStore store(folder.database(), false);
  const std::optional<JobRecord> job = store.job(id);
  if (!job)
    throw ConfigError("", fmt::format("there is no job {}. `starling queue list --all` shows the jobs", id));
  const std::vector<JobTransition> log = store.log(id);
  if (options.json) {
    for (const JobTransition& step : log) print_line(transition_line(*job, step, true));
    nlohmann::ordered_json result = json_of(*job);
    result["event"] = "result";
    result["folder"] = folder.job_folder(id);
    print_line(dump(result));
    return 0;
  }
  print_line(printable(fmt::format(
      "job {} of {}, {} slots, priority {}: {}\n  command   {}\n  folder    {}\n  "
      "output    {}/out and err\n  ran       {}, {} starts, {} preemptions",
      id, job->user, job->slots, job->priority, state_text(*job), fmt::join(job->words, " "), job->folder,
      folder.job_folder(id), duration(runs_for(*job)), job->attempt, job->preemptions)));
  for (const JobTransition& step : log)
    print_line(printable(
        fmt::format("  {:>10}  {:<9} {}", duration(step.at_s - job->submitted_s), step.to, step.why)));
  return 0;
}

int queue_cancel_command(const std::string& state, const std::vector<int64_t>& jobs,
                         const CommandOptions& options) {
  const QueueFolder folder(state, false);
  QueueStore store(folder.database(), false);
  for (const int64_t id : jobs) {
    const QueueJobState before = store.cancel(id, unix_time_s());
    if (options.json || options.verbosity < 0) continue;
    print_line(is_final(before) ? fmt::format("job {} has ended already: {}", id, name_of(before))
               : before == QueueJobState::kQueued
                   ? fmt::format("job {} is cancelled", id)
                   : fmt::format("job {} is {}; the daemon will stop it", id, name_of(before)));
  }
  if (options.json) print_line(dump({{"event", "result"}, {"jobs", jobs}}));
  return 0;
}

namespace {

std::string day_line(uint64_t seed, size_t jobs, const DayResult& day, bool json) {
  if (json)
    return dump({{"event", "day"},
                 {"seed", seed},
                 {"jobs", jobs},
                 {"backlog_s", day.backlog_s},
                 {"busy", day.busy},
                 {"jain", day.jain},
                 {"mean_wait_s", day.mean_wait_s},
                 {"p95_wait_s", day.p95_wait_s},
                 {"longest_wait_s", day.longest_wait_s},
                 {"preemptions", day.preemptions},
                 {"checkpoint_share", day.checkpoint_share}});
  return fmt::format("{:>4} {:>5} {:>8} {:>7} {:>7.4f} {:>10} {:>9} {:>9} {:>12} {:>12}", seed, jobs,
                     fmt::format("{:.1f} h", day.backlog_s / 3600), percent(day.busy), day.jain,
                     duration(day.mean_wait_s), duration(day.p95_wait_s), duration(day.longest_wait_s),
                     day.preemptions, percent(day.checkpoint_share));
}

std::string opening(const QueueSimulateOptions& simulate, const DayOptions& how) {
  return fmt::format(
      "A day of a cluster with {} slots on {} hosts: 6 users, jobs of 1 to {} slots, load {:g}.\n"
      "A preemption costs {:g} s to write a checkpoint and {:g} s to start from it. "
      "busy: slots that compute while a job waits.\n"
      "Jain: fairness of what the users get, relative to generalized processor sharing.\n"
      "seed  jobs  backlog    busy    Jain  mean wait  95 % wait  longest  preemptions  checkpoints",
      slots_of(how.hosts), how.hosts.size(), simulate.largest, simulate.load, simulate.save_s,
      simulate.restore_s);
}

}  // namespace

int queue_simulate_command(const QueueSimulateOptions& simulate, const CommandOptions& options) {
  DayOptions how;
  how.load = simulate.load;
  how.largest = simulate.largest;
  how.save_s = simulate.save_s;
  how.restore_s = simulate.restore_s;
  QueuePolicyOptions policy;
  policy.age_limit_s = simulate.age_limit_h * 3600;
  policy.min_run_s = simulate.min_run_min * 60;
  policy.save_s = simulate.save_s;
  policy.preempts = !simulate.no_preemption;
  if (simulate.largest > slots_of(how.hosts))
    throw ConfigError("--largest", fmt::format("{} slots are more than the {} of the cluster",
                                               simulate.largest, slots_of(how.hosts)));
  if (options.dry_run) {
    print_dry_run("would simulate " + counted(simulate.seeds, "day"), options.json);
    return 0;
  }
  if (!options.json) print_line(opening(simulate, how));
  double busy = 1, jain = 1, wait = 0;
  for (int i = 0; i < simulate.seeds; ++i) {
    how.seed = simulate.seed + static_cast<uint64_t>(i);
    const Day day = generate_day(how);
    const DayResult result = simulate_day(how, day, policy);
    busy = std::min(busy, result.busy);
    jain = std::min(jain, result.jain);
    wait = std::max(wait, result.longest_wait_s);
    if (options.verbosity >= 0) print_line(day_line(how.seed, day.jobs.size(), result, options.json));
  }
  if (options.json)
    print_line(
        dump({{"event", "result"}, {"least_busy", busy}, {"least_jain", jain}, {"longest_wait_s", wait}}));
  else
    print_line(fmt::format("at least {} busy, a Jain index of at least {:.3f}, no wait longer than {}",
                           percent(busy), jain, duration(wait)));
  return 0;
}

}  // namespace starling
