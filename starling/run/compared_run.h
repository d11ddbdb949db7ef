// One run of a comparison: `starling train` as a child process, in a folder of its own.
#pragma once

#include <string>

#include "starling/report/run_record.h"
#include "starling/spec/config.h"

namespace starling {

struct ComparedRun {
  std::string name;
  Config config;  // complete; run.dir is set by run_child_training
};

struct TrainingEnd {
  RunRecord record;
  bool interrupted = false;  // a signal asked this process to end
};

// Writes folder/config.toml, trains with it (everything of the run lies in `folder`) and returns what it told. seconds: after
// so many seconds of steps it is asked to end in order; 0: it runs to its end. A run that fails is a record with an error.
// program: argv[0]. Errors: ConfigError where the folder cannot be written.
TrainingEnd run_child_training(const ComparedRun& run, const std::string& folder, double seconds,
                               const std::string& program);

}  // namespace starling
