// The commands of the program `starling`, as functions: each does what its name says with a configuration that has been
// validated, and returns the exit status of success (0) or of an expected failure, such as a `verify` above its
// tolerance (1). Faults are exceptions (base/error.h), which the program turns into a message and an exit status.
#pragma once

#include <string>
#include <vector>

#include "starling/spec/config.h"
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
// Starts train.ranks copies of a program, its name or path first, on the hosts that the run names, or here (docs/launching.md).
int launch_command(const RunSpec& spec, const std::vector<std::string>& program,
                   const CommandOptions& options);
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

struct FactorizeSpec {
  std::string ratings;  // a file; empty: made up
  int64_t factors = 16;
  double l2 = 0.02;
  double lr_decay = 0.95;
  double test_share = 0.1;
  double memory_limit_mb = 0;                              // that a rank may hold of the matrix; 0: no limit
  std::string save;                                        // folder
  int64_t rows = 2000, columns = 1000, entries = 100'000;  // made up
};
// Factorises a matrix (run/factorize.h) with train.ranks, train.epochs, train.seed, optimizer.lr; by exchange.name =
// parameter-server with H on servers, else by rotation.
int factorize_command(const RunSpec& spec, const FactorizeSpec& what, const CommandOptions& options);

struct ScalingSpec {
  std::vector<int64_t> counts = {1, 2, 4, 8};  // of ranks
  bool strong =
      false;          // the global batch stays, and with it the computation of all ranks; else that of a rank
  int64_t batch = 8;  // samples a rank; strong: over all ranks
  int64_t steps = 30;
  double compute_ms = 20;  // emulated, of a rank's step; strong: of all ranks; 0: as it is
  std::string link = "bandwidth=100mbit,latency=1ms";  // emulation of the slow link
  std::string straggler = "slow-rank=1:2x";
};
// Measures samples/s for 1 … ranks (run/bench_scaling.h).
int bench_scaling_command(const RunSpec& spec, const ScalingSpec& scaling, const CommandOptions& options);

// Prints what a rank would hold (run/plan_memory.h). params: 0 = the configured model's.
int plan_memory_command(const Config& config, double params, const CommandOptions& options);

struct CompareOptions {
  std::string runs;             // --runs (spec/run_text.h)
  std::string budget;           // --budget samples=N|seconds=S
  double target_accuracy = -1;  // share of 1; -1: none
  double target_loss = -1;
  bool measure_exchange = false;  // --measure-exchange
};
// Trains each of the runs and compares them (run/compare.h). files: what -c named. Returns 1 where one of them failed.
int compare_command(const Config& base, const std::vector<std::string>& files, const CompareOptions& compare,
                    const CommandOptions& options);

// The documents' pictures as runs, and their page (run/tour.h). only: those whose title holds this text.
int tour_command(const Config& base, bool quick, const std::string& only, const CommandOptions& options);

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

struct DataServeOptions {
  int64_t port = 0;      // 0: a free one
  std::string key_file;  // made if it is not there; empty: one of this host, while it serves
  double lease_s = 300;  // a worker that is silent for longer loses the batches that it holds
};
// Serves pictures to ranks over the network until it is told to stop (run/data_serve.h).
int data_serve_command(const RunSpec& spec, const DataServeOptions& serve, const CommandOptions& options);
int data_inspect_command(const RunSpec& spec, const CommandOptions& options);

}  // namespace starling
