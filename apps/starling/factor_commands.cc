#include <unistd.h>

#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"
#include "starling/launch/environment.h"
#include "starling/spec/hosts.h"

namespace starling {
namespace {

constexpr double kUsualEpochs = 20;

int run_factorize(const Invocation& invocation) {
  Config config = invocation.flags.read();
  if (read_environment(::environ).identity.origin == ProcessOrigin::kAlone) count_ranks(config);
  if (!config.origins.contains("train.epochs")) config.spec.train.epochs = kUsualEpochs;
  return factorize_command(config.spec, invocation.factorize, invocation.options);
}

}  // namespace

void add_factor_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& command = add_command(app, invocation, "factorize",
                                  "Factorise a matrix of ratings: V = W H (docs/factorization.md)",
                                  [&invocation] { return run_factorize(invocation); });
  FactorizeSpec& what = invocation.factorize;
  command
      .add_option("RATINGS", what.ratings,
                  "A file with \"row column value\" a line; without it entries are made up")
      ->type_name("");
  add_number_option(command, "--factors", what.factors, "Numbers a row and a column", "K", 1, 65536);
  add_number_option(command, "--l2", what.l2, "Penalty on the factors", "X", 0, 1e6);
  add_number_option(command, "--lr-decay", what.lr_decay, "The rate is multiplied by this after each epoch",
                    "X", 0, 1);
  add_number_option(command, "--test-share", what.test_share, "Share of the entries kept for testing", "X", 0,
                    0.9);
  add_number_option(command, "--memory-limit", what.memory_limit_mb,
                    "Most that a rank may hold of the matrix; 0 = no limit", "MB", 0, 1e9);
  command.add_option("--save-factors", what.save, "Folder for W.npy and H.npy")->type_name("DIR");
  add_number_option(command, "--rows", what.rows, "Without RATINGS: rows", "N", 1, 1 << 30);
  add_number_option(command, "--columns", what.columns, "Without RATINGS: columns", "N", 1, 1 << 30);
  add_number_option(command, "--entries", what.entries, "Without RATINGS: known entries", "N", 1,
                    int64_t{1} << 40);
  invocation.flags.add_flags(command);
}

}  // namespace starling
