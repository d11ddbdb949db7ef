#include "starling/run/rank_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/launch/fault.h"
#include "starling/launch/launcher.h"
#include "starling/launch/remote_command.h"
#include "starling/launch/rendezvous.h"
#include "starling/run/diagnosis.h"
#include "starling/run/exit_status.h"
#include "starling/run/plain_error.h"
#include "starling/spec/hosts.h"
#include "starling/spec/on_failure.h"
#include "starling/telemetry/output.h"

namespace starling {
bool must_launch(const RunSpec& spec, const Environment& environment) {
  const bool named = !spec.launch.hosts.empty() || !spec.launch.hostfile.empty();
  return environment.identity.origin == ProcessOrigin::kAlone &&
         (named || spec.train.ranks + servers_of(spec) > 1);
}

namespace {

// The hosts of the run, and how each is reached; none: this one.
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
  return options;
}

// What every program that is launched has in common.
LaunchOptions launch_options(const RunSpec& spec, const RankProgram& program,
                             const Environment& environment) {
  LaunchOptions options;
  options.ranks = static_cast<int>(spec.train.ranks + servers_of(spec));
  options.threads = static_cast<int>(spec.train.threads);
  options.argv = program.argv;
  options.hosts = hosts_for(spec, options.ranks);
  options.environment = ::environ;
  options.color = program.output.color == "always" ||
                  (program.output.color == "auto" && !environment.no_color && ::isatty(2) == 1);
  options.quiet = program.output.verbosity < 0;
  options.rendezvous = start_local_rendezvous;
  options.status_of = [](ErrorCode code) -> int { return exit_status(code); };
  return options;
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
  if (program.keep) make_run_folder(options.run_dir);
  return launch(options, SystemClock());
}

int launch_ranks(const RunSpec& spec, const RankProgram& program, const Environment& environment) {
  if (spec.comm.engine == "mpi")
    throw ConfigError(
        "comm.engine",
        fmt::format("the ranks of an MPI job are started by mpiexec (or srun): mpiexec -n {} {} …, "
                    "without -n behind it",
                    spec.train.ranks + servers_of(spec), program.argv.front()));
  LaunchOptions options = launch_options(spec, program, environment);
  if (!options.hosts.hosts
           .empty())  // the ranks do not read the hostfile, and may have got their number from it
    options.argv.insert(options.argv.end(), {"--set", fmt::format("train.ranks={}", spec.train.ranks)});
  if (program.keep) {
    options.run_dir = run_folder_of(spec, environment);
    make_run_folder(options.run_dir);
  }
  if (goes_on_after_loss(spec)) options.expendable = static_cast<int>(spec.train.ranks);
  if (program.keep) {
    const std::filesystem::path recorders = recorder_folder(options.run_dir);
    std::error_code ignored;
    std::filesystem::remove_all(recorders, ignored);  // of an earlier run, perhaps of more ranks
    options.diagnosis = [recorders] { return who_waits_here(recorders); };
  }
  return launch(options, SystemClock());
}

namespace {

// False where somebody holds it for long.
bool lock(int fd) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// Where no launcher of ours hears of a fault, the first rank that gives up (of those that share the folder) says who waited for whom on its
// host; the others wait meanwhile, for the end of one may be the end of all.
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
    Session session(spec, environment, program.output, program.keep);
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

int run_rank_program(const RunSpec& spec, const RankProgram& program,
                     const std::function<int(Session&)>& work) {
  const Environment environment = read_environment(::environ);
  if (must_launch(spec, environment)) return launch_ranks(spec, program, environment);
  try {
    return work_in_session(spec, environment, program, work);
  } catch (const Error& error) {  // the edge of a rank: the launcher says the first fault of all ranks
    if (!report_fatal(environment, error)) throw;
    return exit_status(error.code());
  } catch (const std::exception& error) {
    if (!report_fatal(environment, error)) throw;
    return kExitOther;
  }
}

}  // namespace starling
