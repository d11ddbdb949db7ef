// The command that resumes an interrupted run.
#pragma once

#include <string>
#include <vector>

#include "starling/launch/environment.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/event.h"

namespace starling {

// Returns the command that resumes the run of this process in `run_dir`. `argv` is the command line of this
// rank. The command is `argv` with the run folder, with --resume auto if the run was not to resume by itself,
// and with -n if our launcher started another program that says nothing about ranks.
ResumeHint resume_hint(const std::vector<std::string>& argv, const RunSpec& spec,
                       const Environment& environment, const std::string& run_dir);

}  // namespace starling
