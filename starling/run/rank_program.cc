#include "starling/run/rank_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/job/folder_lock.h"
#include "starling/launch/fault.h"
#include "starling/launch/launch_rendezvous.h"
#include "starling/launch/launcher.h"
#include "starling/launch/remote_command.h"
#include "starling/run/message/diagnosis.h"
#include "starling/run/message/exit_status.h"
#include "starling/run/message/plain_error.h"
#include "starling/run/thread_waiting.h"
#include "starling/spec/hosts.h"
#include "starling/spec/on_failure.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {

bool must_launch(const RunSpec& spec, const Environment& environment) {
  const bool named = !spec.launch.hosts.empty() || !spec.launch.hostfile.empty();
  return environment.identity.origin == ProcessOrigin::kAlone &&
         (named || spec.train.ranks + servers_of(spec) > 1);
}

void print_launch_warnings(const RunSpec& spec, const OutputOptions& output) {
  const Environment environment = read_environment(::environ);
  if (output.verbosity < 0 || !must_launch(spec, environment) || !hosts_of(spec.launch).empty()) return;
  LaunchOptions options;
  options.ranks = static_cast<int>(spec.train.ranks + servers_of(spec));
  options.threads = static_cast<int>(spec.train.threads);
  const std::optional<std::string> warning = crowd_warning(options, usable_cpus());
  const bool color = wants_color(environment, output.color, STDERR_FILENO);
  if (warning) FdOutput(2).write(paint(color, Color::kYellow, "warning: ") + *warning + "\n");
}

namespace {

// Returns the hosts of the run and how each is reached. No hosts means this host.
HostsOptions hosts_for(const RunSpec& spec, int processes) {
  HostsOptions options;
  const std::vector<HostSlots> named = hosts_of(spec.launch);
  if (named.empty()) return options;
  for (const HostSlots& share : share_out(named, processes))
    options.hosts.push_back({share.name, share.slots});
  options.command = spec.launch.command;
  options.program = spec.launch.program;
  options.interface = spec.comm.interface;
  options.security = security_named(spec.comm.security);
  options.dead_after = std::chrono::milliseconds(static_cast<int64_t>(spec.comm.dead_after_s * 1000));
  return options;
}

// Returns the options that all launched programs share.
LaunchOptions launch_options(const RunSpec& spec, const RankProgram& program,
                             const Environment& environment) {
  LaunchOptions options;
  options.ranks = static_cast<int>(spec.train.ranks + servers_of(spec));
  options.threads = static_cast<int>(spec.train.threads);
  options.argv = program.argv;
  options.hosts = hosts_for(spec, options.ranks);
  options.environment = ::environ;
  options.color = wants_color(environment, program.output.color, STDERR_FILENO);
  options.quiet = program.output.verbosity < 0;
  options.json = program.output.json;
  options.rendezvous = start_local_rendezvous;
  options.status_of = [](ErrorCode code) -> int { return exit_status(code); };
  return options;
}

// Waits until no other run uses the folder, before the ranks' logs and recordings in it are replaced. Rank 0
// then takes the lock for itself. Errors: those of FolderLock.
void require_free_folder(const std::string& run_dir) {
  FolderLockOptions options;
  options.say = [](const std::string& text) { FdOutput(2).write("starling: warning: " + text + "\n"); };
  const FolderLock free(run_dir, new_incarnation(), options);
}

}  // namespace

int launch_program(const RunSpec& spec, const RankProgram& program, const Environment& environment) {
  LaunchOptions options = launch_options(spec, program, environment);
  options.program = program.argv.front();
  if (options.hosts.hosts.empty()) {
    std::vector<std::string> variables;
    for (const char* const* entry = ::environ; *entry; ++entry) variables.emplace_back(*entry);
    options.program = program_to_start(options.program, variables);
  }
  options.run_dir = spec.run.dir;
  if (program.keep) {
    make_run_folder(options.run_dir);
    require_free_folder(options.run_dir);
  }
  return launch(options, SystemClock());
}

std::optional<int> launch_ranks(const RunSpec& spec, const RankProgram& program,
                                const Environment& environment) {
  if (spec.comm.engine == "mpi")
    throw ConfigError(
        "comm.engine",
        fmt::format("the ranks of an MPI job are started by mpiexec (or srun): mpiexec -n {} {} …, "
                    "without -n after the program",
                    spec.train.ranks + servers_of(spec), program.argv.front()));
  LaunchOptions options = launch_options(spec, program, environment);
  // The ranks do not read the hostfile, which may determine their number.
  if (!options.hosts.hosts.empty())
    options.argv.insert(std::find(options.argv.begin(), options.argv.end(), "--"),
                        {"--set", fmt::format("train.ranks={}", spec.train.ranks)});
  if (program.keep) {
    options.run_dir = run_folder_of(spec, environment);
    make_run_folder(options.run_dir);
  }
  if (program.keep) require_free_folder(options.run_dir);
  if (goes_on_after_loss(spec)) options.expendable = static_cast<int>(spec.train.ranks);
  if (program.keep) {
    const std::filesystem::path recorders = recorder_folder(options.run_dir);
    std::error_code ignored;
    std::filesystem::remove_all(recorders, ignored);  // left by an earlier run, perhaps of more ranks
    options.diagnosis = [recorders] { return who_waits_here(recorders); };
  }
  const std::string& start = spec.launch.start;
  RankForks forks = start == "fork" || (start == "auto" && program.forks) ? fork_ranks(options) : RankForks();
  if (forks.in_rank()) return std::nullopt;
  options.forks = &forks;
  return launch(options, SystemClock());
}

namespace {

// Returns false if another process holds the lock for long.
bool lock(int fd) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// Prints which rank waited for which, if our launcher does not handle faults. Of the ranks that share the
// folder, only the first that fails prints, for its host. All other ranks wait meanwhile, because the end of
// one rank may end the whole job.
void say_who_waits(const Environment& environment) {
  if (environment.error_fd >= 0 || environment.run_dir.empty()) return;
  const UniqueFd said(::open(said_file(environment.run_dir).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  struct stat state{};
  if (!said.valid() || !lock(said.get()) || ::fstat(said.get(), &state) != 0) return;
  const std::vector<std::string> lines = who_waits_here(recorder_folder(environment.run_dir));
  if (state.st_size > 0 || lines.empty()) return;
  std::string text = fmt::format("starling: who waited for whom (starling doctor --recorder {} says more):\n",
                                 environment.run_dir);
  for (const std::string& line : lines) text += "  " + line + "\n";
  FdOutput(2).write(text);
  FdOutput(said.get()).write(text);
}

int work_in_session(const RunSpec& spec, const Environment& environment, const RankProgram& program,
                    const std::function<int(Session&)>& work) {
  try {
    Session session(spec, environment, program.output, program.keep, program.argv);
    try {
      return work(session);
    } catch (const CommError&) {
      say_who_waits(session.environment());
      throw;
    }
  } catch (const c10::Error& error) {
    throw plain_error(error);
  }
}

}  // namespace

int interrupted_status(const Environment& environment, const RunResult& result) {
  const Error interrupted(ErrorCode::kInterrupted, "a signal interrupted the run, which ends in order");
  report_fatal(environment, interrupted);
  return 128 + (result.signal != 0 ? result.signal : SIGTERM);
}

int interrupted_status(Session& session) {
  RunResult result;
  const RunRequests* requests = session.run_environment().process.requests;
  result.signal = requests == nullptr ? 0 : requests->signal.load();
  return interrupted_status(session.environment(), result);
}

int run_rank_program(const RunSpec& spec, const RankProgram& program,
                     const std::function<int(Session&)>& work) {
  Environment environment = read_environment(::environ);
  if (must_launch(spec, environment)) {
    if (const std::optional<int> status = launch_ranks(spec, program, environment)) return *status;
    environment = read_environment(::environ);
  }
  wait_briefly(spec, environment, program.argv);
  try {
    return work_in_session(spec, environment, program, work);
  } catch (const Error& error) {
    // This is the outermost level of a rank. The launcher reports the first fault of all ranks.
    if (!report_fatal(environment, error)) throw;
    return exit_status(error.code());
  } catch (const std::exception& error) {
    if (!report_fatal(environment, error)) throw;
    return kExitOther;
  }
}

}  // namespace starling
