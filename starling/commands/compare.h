// `starling compare`: trains the same model on the same data in several ways and compares the runs.
//
// Runs follow each other. Each run is `starling train` in processes of its own. All runs have the same
// initial weights and the same samples in the same order (train.seed). Every rank of every run has the same
// number of threads, 1 unless the configuration says otherwise. The first run is one rank.
#pragma once

#include <string>
#include <vector>

#include "starling/commands/commands.h"
#include "starling/commands/compared_run.h"
#include "starling/report/comparison.h"

namespace starling {

// How long each run trains. One of the two is positive.
struct Budget {
  int64_t samples = 0;
  double seconds = 0;
  // Returns "1,000 samples" or "20 seconds".
  std::string text() const;
};
// Reads "samples=N" or "seconds=S". Errors: ConfigError ("--budget").
Budget parse_budget(const std::string& text);

struct ComparisonPlan {
  std::string title, lead;
  Config base;                    // the configuration that every run changes
  std::vector<ComparedRun> runs;  // the first is one rank
  std::vector<Picture> pictures;
  Budget budget;
  Target target;
  bool measure_exchange = false;  // also measures exchanges on emulated links
};

// Makes the plan of `starling compare`: the run of one rank, then the runs of --runs, each with the budget.
// Errors: ConfigError, if
//   - a run cannot train (the message names the run),
//   - the budget is less than one step,
//   - the budget is in seconds and the learning rate depends on the number of steps (cosine, poly,
//     schedule.warmup_share).
ComparisonPlan make_plan(const Config& base, const std::vector<std::string>& files,
                         const CompareOptions& options);

// Returns the configuration of the same training on one rank: without exchange, mesh, sharding, partition,
// emulation and everything else that concerns several ranks.
Config one_rank(Config config);

// Adds the budget and the default number of threads to each run of `plan`. Resets the keys of the comparison
// that a run does not read, and validates the runs. Errors: those of make_plan().
void complete_plan(ComparisonPlan& plan);

// Trains all runs, writes the report FOLDER/index.html, and prints the table, or one line of JSON for each
// run if options.json is set. Returns the exit status: 1 if a run failed, 130 after an interruption. Errors:
// ConfigError if a launcher has started this process.
int carry_out(const ComparisonPlan& plan, const CommandOptions& options);

}  // namespace starling
