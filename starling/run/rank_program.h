// RankProgram: a program that is both the launcher of its ranks and each of them, as `starling train -n 4` and every
// program that calls starling::init are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "starling/run/session.h"
#include "starling/spec/run_spec.h"

namespace starling {

struct RankProgram {
  std::vector<std::string> argv;  // this process's command line, which the ranks get too
  OutputOptions output;
  bool keep = true;  // a run folder with logs, telemetry and checkpoints
};

// True if this process has to start the ranks: it is alone and the spec asks for several.
bool must_launch(const RunSpec& spec, const Environment& environment);

// Starts spec.train.ranks copies of this program and waits for them. Returns their exit status.
int launch_ranks(const RunSpec& spec, const RankProgram& program, const Environment& environment);

// The same for any program: program.argv, its name or path first. Logs only where run.dir says so. The ranks have torchrun's environment
// beside ours; a program of ours among them meets as under `starling train`. ConfigError where it is not found.
int launch_program(const RunSpec& spec, const RankProgram& program, const Environment& environment);

// Launches, or makes the session of this rank and calls `work` with it. A fault is told to the launcher, if there is one,
// which prints the first of them; without a launcher it is rethrown. Returns the exit status.
int run_rank_program(const RunSpec& spec, const RankProgram& program,
                     const std::function<int(Session&)>& work);

}  // namespace starling
