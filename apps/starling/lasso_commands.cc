#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"
#include "apps/starling/solver.h"

namespace starling {
namespace {

int run_lasso_command(const Invocation& invocation) {
  Config config = invocation.flags.read();
  count_solver_ranks(config);
  return lasso_command(config.spec, invocation.lasso, invocation.options);
}

void add_problem(CLI::App& command, LassoSpec& what) {
  command.add_option("DATA", what.data, "CSV or .npy file with one sample per row")->type_name("");
  command.add_option("--label", what.label, "Column of y: first or last [last]")->type_name("WHERE");
  add_number_option(command, "--lambda", what.lambda,
                    "Penalty λ on the absolute weights. 0 stands for --lambda-share", "X", 0, 1e300);
  add_number_option(command, "--lambda-share", what.lambda_share,
                    "λ as a share of the smallest λ at which all weights are zero", "X", 0, 1);
  command.add_flag("--no-intercept", what.no_intercept, "Fit no intercept");
  add_number_option(command, "--samples", what.samples, "Samples of a generated problem", "N", 1,
                    int64_t{1} << 32);
  add_number_option(command, "--features", what.features, "Features of a generated problem", "N", 1,
                    int64_t{1} << 24);
  add_number_option(command, "--block", what.block, "Features per correlated block of a generated problem",
                    "N", 1, int64_t{1} << 24);
  add_number_option(command, "--correlation", what.correlation, "Correlation within a block", "X", 0, 1);
  add_number_option(command, "--nonzeros", what.nonzeros, "Features that y depends on", "N", 0,
                    int64_t{1} << 24);
  add_number_option(command, "--noise", what.noise, "Standard deviation of the noise in y", "X", 0, 1e9);
}

void add_loop(CLI::App& command, LassoSpec& what) {
  command
      .add_option("--schedule", what.schedule,
                  "strads, unchecked, shotgun, random, cyclic or active-set [strads]")
      ->type_name("NAME");
  add_number_option(command, "--updates", what.updates, "Updates that a round computes", "N", 1, 1 << 14);
  add_number_option(command, "--rho", what.rho,
                    "Weights that change in one round have smaller correlations than this", "X", 0, 1);
  add_number_option(command, "--exploration", what.exploration, "Share of draws without regard to priority",
                    "X", 0, 1);
  add_number_option(
      command, "--tolerance", what.tolerance,
      "The run ends when the duality gap is at most this share of the objective of zero weights. With 0 it "
      "ends when no update changes a weight by more than rounding",
      "X", 0, 1e300);
  command.add_option("--target", what.target, "The run also ends when the objective is at most this")
      ->type_name("X");
  add_number_option(command, "--max-updates", what.max_updates,
                    "Updates after which the run ends, at the end of their round", "N", 1, int64_t{1} << 50);
  command.add_option("--checkpoint", what.checkpoint, "Folder for checkpoints, from which a run goes on")
      ->type_name("DIR");
  add_number_option(command, "--checkpoint-every", what.checkpoint_every,
                    "Rounds between two checkpoints. 0 writes one at the end only", "N", 0, int64_t{1} << 40);
  command.add_option("--save-weights", what.save, "File for the weights and the intercept (.npy)")
      ->type_name("FILE");
}

}  // namespace

void add_lasso_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& command = add_command(
      app, invocation,
      {.name = "lasso",
       .group = kTrainGroup,
       .summary = "Fit a lasso by scheduled updates of its weights",
       .details =
           "Each round draws weights by priority and changes those whose features have small "
           "correlations with each other, at once (STRADS: Kim et al., EuroSys 2016). Without DATA, the "
           "command fits generated samples and then shows how many updates each schedule needs. It uses "
           "two ranks unless -n or hosts are given.",
       .examples = {"starling lasso", "starling lasso -n 4 --lambda 0.05 data.csv --save-weights w.npy",
                    "starling lasso --schedule active-set samples.npy"}},
      [&invocation] { return run_lasso_command(invocation); });
  add_problem(command, invocation.lasso);
  add_loop(command, invocation.lasso);
  invocation.flags.add_flags(command, solver_flags());
}

}  // namespace starling
