#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"
#include "apps/starling/solver.h"

namespace starling {
namespace {

int run_mcmc_command(const Invocation& invocation) {
  Config config = invocation.flags.read();
  count_solver_ranks(config);
  McmcSpec what = invocation.mcmc;
  if (what.data.empty() && is_given(config.origins, "data.source")) what.data = config.spec.data.source;
  return mcmc_command(config.spec, what, invocation.options);
}

void add_mcmc_numbers(CLI::App& command, McmcSpec& what) {
  constexpr int64_t kMost = int64_t{1} << 40;
  add_number_option(command, "--sub-posteriors", what.sub_posteriors,
                    "Parts of the samples. 0: one per rank, and at least 4 for a Gaussian", "M", 0, 1 << 20);
  add_number_option(command, "--draws", what.draws, "Draws of each sub-posterior", "T", 4, kMost);
  add_number_option(command, "--warmup", what.warmup, "Transitions that adapt a chain before its draws", "N",
                    0, kMost);
  add_number_option(command, "--target-acceptance", what.target_acceptance,
                    "Mean acceptance probability at which HMC aims", "X", 0, 1);
  add_number_option(command, "--ridge", what.ridge, "λ of the prior exp(−λ/2 |w|²)", "X", -1e300, 1e300);
  add_number_option(command, "--checkpoint-every", what.checkpoint_every,
                    "Transitions between two checkpoints. 0 writes one at the end only", "N", 0, kMost);
  add_number_option(command, "--samples", what.samples, "Samples of a generated problem", "N", 1,
                    int64_t{1} << 28);
  add_number_option(command, "--features", what.features, "Features of a generated problem", "N", 1, 1000);
}

}  // namespace

void add_mcmc_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& command = add_command(
      app, invocation,
      {.name = "mcmc",
       .group = kTrainGroup,
       .summary = "Sample a posterior by embarrassingly parallel MCMC",
       .details =
           "Each rank samples the posterior of its own part of the samples, with the prior to the power 1/M, "
           "and sends nothing meanwhile. Then the draws are combined (Neiswanger, Wang and Xing, "
           "\"Asymptotically exact, embarrassingly parallel MCMC\", arXiv 1311.4780). Without DATA, the "
           "command samples the mean of a Gaussian, and compares all estimators with the known posterior. "
           "It uses two ranks unless -n or hosts are given.",
       .examples = {"starling mcmc",
                    "starling mcmc -n 4 data.csv --combine semiparametric --save-draws d.npy",
                    "starling mcmc -n 2 --model logistic --sampler random-walk --draws 20000"}},
      [&invocation] { return run_mcmc_command(invocation); });
  McmcSpec& what = invocation.mcmc;
  command.add_option("DATA", what.data, "CSV file with one sample per line, idx:DIR or cifar-bin:DIR")
      ->type_name("");
  command.add_option("--model", what.model, "The posterior: gaussian, or logistic, the default with DATA")
      ->type_name("NAME");
  command.add_option("--label", what.label, "Column of the label in a CSV file: first or last [last]")
      ->type_name("WHERE");
  command.add_option("--positive", what.positive, "The label that counts as 1, while all others count as 0")
      ->type_name("K");
  command.add_option("--sampler", what.sampler, "How chains move: hmc or random-walk [hmc]")
      ->type_name("NAME");
  command
      .add_option("--combine", what.combine,
                  "Estimator: parametric, nonparametric, semiparametric, semiparametric-w, average or pool "
                  "[parametric]")
      ->type_name("NAME");
  add_mcmc_numbers(command, what);
  command.add_option("--checkpoint", what.checkpoint, "Folder for checkpoints, from which a run goes on")
      ->type_name("DIR");
  command.add_option("--save-draws", what.save, "File for the combined draws (.npy)")->type_name("FILE");
  invocation.flags.add_flags(command, solver_flags());
}

}  // namespace starling
