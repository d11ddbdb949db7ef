// The command that resumes an interrupted run.
#pragma once

#include <string>
#include <vector>

#include "starling/launch/environment.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/event.h"

namespace starling {

// Returns the command that resumes the run of this process in `run_dir`. `argv` is the command line of this
// rank. The command is `argv` with the run folder, and with --resume auto unless run.resume is "auto". If our
// launcher started the rank and `argv` does not say the number of ranks, the command also has -n.
ResumeHint resume_hint(const std::vector<std::string>& argv, const RunSpec& spec,
                       const Environment& environment, const std::string& run_dir);

}  // namespace starling
