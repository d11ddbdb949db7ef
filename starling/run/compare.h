// `starling compare`: several ways to train the same model on the same data, one after the other, beside each other. Each run
// is `starling train` in processes of its own, with the same samples, order and initial weights (train.seed), and the same
// number of threads a rank (1 unless configured: a rank is the same computer in every run). The first run is one rank.
#pragma once

#include <string>
#include <vector>

#include "starling/report/comparison.h"
#include "starling/run/commands.h"
#include "starling/run/compared_run.h"

namespace starling {

// "samples=N" or "seconds=S": how long each run trains.
struct Budget {
  int64_t samples = 0;
  double seconds = 0;
  std::string text() const;
};
// Errors: ConfigError ("--budget") that shows the form.
Budget parse_budget(const std::string& text);

struct ComparisonPlan {
  std::string title, lead;
  Config base;                    // what the runs share
  std::vector<ComparedRun> runs;  // the first: one rank
  std::vector<Picture> pictures;
  Budget budget;
  Target target;
  bool measure_exchange = false;  // FireCaffe's curve on emulated links too, about ten seconds
};

// Puts the budget into each run, adds the run of one rank in front, and checks all of them. Errors: ConfigError, with the
// run's name, for a run that cannot train; a budget of less than one step; a schedule that needs to know the length of a run
// (cosine, poly) with a budget of seconds.
ComparisonPlan make_plan(const Config& base, const std::vector<std::string>& files,
                         const CompareOptions& options);

// The same training by one process, without exchange, mesh, sharding or partition.
Config one_rank(Config config);

// Completes `runs` (which have names and configurations, the first being one rank) by budget and defaults.
void complete_plan(ComparisonPlan& plan);

// Trains all of them and writes FOLDER/index.html. Prints the table, or with options.json a line a run. Returns the exit
// status: 1 where a run failed, 130 after an interruption.
int carry_out(const ComparisonPlan& plan, const CommandOptions& options);

}  // namespace starling
