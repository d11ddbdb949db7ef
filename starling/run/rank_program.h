// RankProgram is a program that starts its own ranks and is also each of these ranks. `starling train -n 4`
// and every program that calls starling::init are of this kind.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "starling/run/session.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/event.h"

namespace starling {

struct RankProgram {
  std::vector<std::string> argv;  // the command line of this process, which each rank gets too
  OutputOptions output;
  bool forks = false;  // whether launch.start = "auto" means that ranks are forks of this process
  bool keep = true;    // whether there is a run folder with logs, events and checkpoints
};

// Returns true if this process must start the ranks: it is alone, and the configuration asks for several
// processes or names hosts.
bool must_launch(const RunSpec& spec, const Environment& environment);

// Prints the warning of launch_ranks() about ranks that share the cores of this host. For a dry run, which
// starts no ranks.
void print_launch_warnings(const RunSpec& spec, const OutputOptions& output);

// Starts the ranks and the servers of the run, waits for them, and returns the exit status of the run.
// Returns nothing in a process that has become a rank: read_environment() says which one. Errors:
// ConfigError, for example if the ranks communicate through MPI or if another run uses the run folder.
std::optional<int> launch_ranks(const RunSpec& spec, const RankProgram& program,
                                const Environment& environment);

// Like launch_ranks(), for any program. program.argv begins with its name or path. There are logs only if
// run.dir is set. The ranks have torchrun's environment variables beside ours, so a program that calls
// starling::init works as under `starling train`. Errors: ConfigError if the program is not found.
int launch_program(const RunSpec& spec, const RankProgram& program, const Environment& environment);

// Returns the exit status of a rank whose run was interrupted: 128 + the signal, or 128 + SIGTERM if the
// signal is not known. If our launcher started the rank, the function also tells the launcher that the rank
// ends in order. The launcher then determines the status of the program.
int interrupted_status(const Environment& environment, const RunResult& result);
// Like the function above, for a command whose work has no RunResult. The session knows the signal.
int interrupted_status(Session& session);

// Starts the ranks, or makes the session of this rank and calls `work` with it. Returns the exit status. A
// fault of a rank goes to the launcher, which prints the first one. Without a launcher the fault is rethrown.
int run_rank_program(const RunSpec& spec, const RankProgram& program,
                     const std::function<int(Session&)>& work);

}  // namespace starling
