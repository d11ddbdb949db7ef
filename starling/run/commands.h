// The commands of the program `starling`, as functions: each does what its name says with a configuration that has been
// validated, and returns the exit status of success (0) or of an expected failure, such as a `verify` above its
// tolerance (1). Faults are exceptions (base/error.h), which the program turns into a message and an exit status.
#pragma once

#include <string>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

struct CommandOptions {
  bool json = false;     // one object a line on standard output
  bool dry_run = false;  // say what would be done, and do not do it
  int verbosity = 0;     // -1 quiet, 1 and more verbose
  std::string color =
      "auto";  // auto always never; what auto means, a terminal without NO_COLOR, is decided in run/
  std::vector<std::string> argv;  // the whole command line, the program first
};

int train_command(const RunSpec& spec, const CommandOptions& options);
int eval_command(const RunSpec& spec, const CommandOptions& options);
int verify_command(const RunSpec& spec, const CommandOptions& options);
int doctor_command(const CommandOptions& options);
// Prints what the flight recorders in a run's folder hold (comm/recorder.h): who waited for whom. ConfigError where it has none.
int doctor_recorder_command(const std::string& folder, const CommandOptions& options);
int zoo_ls_command(const CommandOptions& options);
int strategies_command(const CommandOptions& options);

struct ZooShowOptions {
  int64_t batch = 1024;  // samples of a step over all ranks
  int64_t pixels = 0;    // of a side of the picture; 0 = the usual size of the model
};
// Prints what each layer of a model weighs, takes in and computes. Errors: ConfigError for a batch below 1, pixels for a
// model without pictures, or too few for it.
int zoo_show_command(const ModelSpec& spec, const ZooShowOptions& show, const CommandOptions& options);

// Times layers for about so many seconds (run/bench_layers.h) and prints a table.
int bench_layers_command(double seconds, const CommandOptions& options);

struct CommBenchOptions {
  uint64_t smallest = 256;
  uint64_t largest = 16 << 20;  // bytes
  double seconds = 10;          // about, of measuring
  bool tune = false;            // keep the fastest algorithms for later runs (run/tuning_file.h)
};
// Starts spec.train.ranks ranks, times the collectives (run/bench_comm.h) and prints a table each; 1 if a result was wrong.
int bench_comm_command(const RunSpec& spec, const CommBenchOptions& bench, const CommandOptions& options);

// Writes the generated data that data.source names into out_dir, as files that idx: and text: read.
int data_make_command(const RunSpec& spec, const std::string& out_dir, const CommandOptions& options);
int data_inspect_command(const RunSpec& spec, const CommandOptions& options);

}  // namespace starling
