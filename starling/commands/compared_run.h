// One run of a comparison. It is `starling train` as a child process with its own run folder.
#pragma once

#include <string>

#include "starling/report/run_record.h"
#include "starling/spec/config.h"

namespace starling {

struct ComparedRun {
  std::string name;
  Config config;  // complete, except run.dir, which run_child_training() sets
};

struct TrainingEnd {
  RunRecord record;
  bool interrupted = false;  // this process received a signal that asks to end
};

// Writes folder/config.toml, trains with it and returns what the run reported. All files of the run are in
// `folder`.
//
// seconds: if positive, the run is asked to end in order when its steps have taken that long.
// program: argv[0] of this process.
// A run that fails is a record with an error. Errors: ConfigError if `folder` cannot be written.
TrainingEnd run_child_training(const ComparedRun& run, const std::string& folder, double seconds,
                               const std::string& program);

}  // namespace starling
