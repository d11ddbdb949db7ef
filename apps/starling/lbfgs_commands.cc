#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"
#include "apps/starling/solver.h"

namespace starling {
namespace {

int run_lbfgs(const Invocation& invocation) {
  Config config = invocation.flags.read();
  count_solver_ranks(config);
  LbfgsSpec what = invocation.lbfgs;
  if (what.data.empty() && is_given(config.origins, "data.source")) what.data = config.spec.data.source;
  return lbfgs_command(config.spec, what, invocation.options);
}

void add_numbers(CLI::App& command, LbfgsSpec& what) {
  add_number_option(command, "--ridge", what.ridge, "Ridge penalty λ on the weights, at least 0", "X", -1e300,
                    1e300);
  add_number_option(command, "--tolerance", what.tolerance,
                    "The loop ends when no element of the gradient is larger", "X", 0, 1e300);
  add_number_option(command, "--memory", what.memory, "Pairs of vectors that L-BFGS keeps", "M", 1, 1000);
  add_number_option(command, "--iterations", what.iterations, "Largest number of iterations", "N", 0,
                    int64_t{1} << 40);
  add_number_option(command, "--portions", what.portions, "Portions of the samples per rank", "K", 1,
                    1 << 20);
  add_number_option(command, "--checkpoint-every", what.checkpoint_every,
                    "Iterations between two checkpoints. 0 writes one at the end only", "N", 0,
                    int64_t{1} << 40);
  add_number_option(command, "--samples", what.samples, "Samples of a generated problem", "N", 1,
                    int64_t{1} << 32);
  add_number_option(command, "--features", what.features, "Features of a generated problem", "N", 1,
                    int64_t{1} << 24);
}

}  // namespace

void add_lbfgs_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& command = add_command(
      app, invocation,
      {.name = "lbfgs",
       .group = kTrainGroup,
       .summary = "Fit a ridge logistic regression by L-BFGS under a coordinator",
       .details =
           "Ranks hold slices of all vectors and compute small portions of the gradient (Sandblaster "
           "L-BFGS: Dean et al., \"Large scale distributed deep networks\", NIPS 2012). Without DATA, the "
           "command fits generated samples and then shows what a slow rank costs. It uses two ranks unless "
           "-n or hosts are given.",
       .examples = {"starling lbfgs", "starling lbfgs -n 4 --ridge 0.01 data.csv --save-weights w.npy",
                    "starling lbfgs -n 2 idx:/data/mnist --positive 7"}},
      [&invocation] { return run_lbfgs(invocation); });
  LbfgsSpec& what = invocation.lbfgs;
  command.add_option("DATA", what.data, "CSV file with one sample per line, idx:DIR or cifar-bin:DIR")
      ->type_name("");
  command.add_option("--label", what.label, "Column of the label in a CSV file: first or last [last]")
      ->type_name("WHERE");
  command.add_option("--positive", what.positive, "The label that counts as 1, while all others count as 0")
      ->type_name("K");
  add_numbers(command, what);
  command.add_flag("--no-backups", what.no_backups, "Hand out no backup copies of the slowest portions");
  command.add_flag("--equal-portions", what.equal_portions, "Give each rank one portion of equal size");
  command.add_flag("--compare-portions", what.compare_portions,
                   "Measure what a slow rank costs with small and with equal portions");
  command.add_option("--checkpoint", what.checkpoint, "Folder for checkpoints, from which a run goes on")
      ->type_name("DIR");
  command.add_option("--save-weights", what.save, "File for the weights and the intercept (.npy)")
      ->type_name("FILE");
  invocation.flags.add_flags(command, solver_flags({"train.emulate"}));
}

}  // namespace starling
