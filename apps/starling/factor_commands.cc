#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"

namespace starling {
namespace {

constexpr double kUsualEpochs = 20;

int run_factorize(const Invocation& invocation) {
  Config config = invocation.flags.read();
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
  command.add_option("--factors", what.factors, "Numbers a row and a column [16]")
      ->check(CLI::Range(1, 65536))
      ->type_name("K");
  command.add_option("--l2", what.l2, "Penalty on the factors [0.02]")
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("X");
  command.add_option("--lr-decay", what.lr_decay, "The rate is multiplied by this after each epoch [0.95]")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("X");
  command.add_option("--test-share", what.test_share, "Share of the entries kept for testing [0.1]")
      ->check(CLI::Range(0.0, 0.9))
      ->type_name("X");
  command
      .add_option("--memory-limit", what.memory_limit_mb,
                  "Most that a rank may hold of the matrix; 0 = no limit [0]")
      ->check(CLI::Range(0.0, 1e9))
      ->type_name("MB");
  command.add_option("--save-factors", what.save, "Folder for W.npy and H.npy")->type_name("DIR");
  command.add_option("--rows", what.rows, "Without RATINGS: rows [2000]")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N");
  command.add_option("--columns", what.columns, "Without RATINGS: columns [1000]")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N");
  command.add_option("--entries", what.entries, "Without RATINGS: known entries [100000]")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->type_name("N");
  invocation.flags.add_flags(command);
}

}  // namespace starling
