#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"

namespace starling {

void add_compare_commands(CLI::App& app, Invocation& invocation) {
  CompareOptions& options = invocation.compare;
  CLI::App& compare = add_command(app, invocation, "compare",
                                  "Train the same model in several ways: a table and a page", [&invocation] {
                                    return compare_command(invocation.flags.read(), invocation.flags.files(),
                                                           invocation.compare, invocation.options);
                                  });
  compare
      .add_option(
          "--runs", options.runs,
          "Between commas: an exchange, [runs.NAME] of the file, or KEY=VALUE:KEY=VALUE; as "
          "all-reduce,local-sgd:every=8,codec=1bit,shard=parameters. One rank is always the first run")
      ->required()
      ->type_name("A,B,C");
  compare.add_option("--budget", options.budget, "How long each run trains: samples=N or seconds=S")
      ->required()
      ->type_name("HOW");
  add_number_option(compare, "--target-accuracy", options.target_accuracy,
                    "Tell when the test accuracy is reached, as 0.95", "SHARE", 0, 1);
  add_number_option(compare, "--target-loss", options.target_loss,
                    "Tell when the training loss, the mean of 20 steps, is reached", "LOSS", 0, 1e9);
  compare.add_flag("--measure-exchange", options.measure_exchange,
                   "Also measure star, tree and ring for 2, 4 and 8 ranks on emulated links, half a minute");
  invocation.flags.add_flags(compare);

  CLI::App& tour = add_command(
      app, invocation, "tour", "The pictures of the seed documents, run here, on one page", [&invocation] {
        return tour_command(invocation.flags.read(), invocation.quick, invocation.only, invocation.options);
      });
  tour.add_flag("--quick", invocation.quick, "A small model and few samples: under a minute");
  tour.add_option("--only", invocation.only, "Only the pictures whose title holds this, as ZeRO")
      ->type_name("TEXT");
  invocation.flags.add_flags(tour);
}

}  // namespace starling
