#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"

namespace starling {
namespace {

void add_tour_command(CLI::App& app, Invocation& invocation) {
  CLI::App& tour = add_command(
      app, invocation,
      {.name = "tour",
       .group = kCompareGroup,
       .summary = "Train an example of each parallel algorithm and write one report",
       .details = "Every chapter of the report trains one network in several ways on this machine.",
       .examples = {"starling tour --quick", "starling tour --only ZeRO"}},
      [&invocation] {
        return tour_command(invocation.flags.read(), invocation.quick, invocation.only, invocation.options);
      });
  tour.add_flag("--quick", invocation.quick, "Use a small model and few samples, for less than a minute");
  tour.add_option("--only", invocation.only,
                  "Run only the chapters whose title contains this text, for example ZeRO")
      ->type_name("TEXT");
  invocation.flags.add_flags(tour, {.sections = {Section::kModel, Section::kData, Section::kOptimizer},
                                    .keys = {"train.ranks", "train.global_batch", "run.dir"}});
}

}  // namespace

void add_compare_commands(CLI::App& app, Invocation& invocation) {
  CompareOptions& options = invocation.compare;
  CLI::App& compare = add_command(
      app, invocation,
      {.name = "compare",
       .group = kCompareGroup,
       .summary = "Train one model in several ways and write a report",
       .details =
           "All runs use the same samples, the same order and the same initial weights. The first run is "
           "always a single rank. A run is the name of an exchange, the name of a table [runs.NAME] in "
           "the configuration file, or a list of KEY=VALUE separated by colons.",
       .examples = {"starling compare -n 4 --budget samples=50000 --runs all-reduce,gossip,codec=1bit",
                    "starling compare -n 4 --budget seconds=20 --runs local-sgd:every=8,shard=parameters"}},
      [&invocation] {
        return compare_command(invocation.flags.read(), invocation.flags.files(), invocation.compare,
                               invocation.options);
      });
  compare.add_option("--runs", options.runs, "Runs to compare, separated by commas")
      ->required()
      ->type_name("A,B,C");
  compare.add_option("--budget", options.budget, "Length of each run: samples=N or seconds=S")
      ->required()
      ->type_name("HOW");
  add_number_option(compare, "--target-accuracy", options.target_accuracy,
                    "Report when the test accuracy reaches this value, for example 0.95", "FRACTION", 0, 1);
  add_number_option(compare, "--target-loss", options.target_loss,
                    "Report when the training loss, as the mean of 20 steps, falls to this value", "LOSS", 0,
                    1e9);
  compare.add_flag("--measure-exchange", options.measure_exchange,
                   "Also measure star, tree and ring with 2, 4 and 8 ranks on emulated links");
  invocation.flags.add_flags(compare);
  add_tour_command(app, invocation);
}

}  // namespace starling
