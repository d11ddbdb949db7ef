#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"
#include "apps/starling/solver.h"

namespace starling {
namespace {

constexpr double kDefaultEpochs = 20;
constexpr const char* kDefaultEpochsText = "20";  // in the help

FlagChoice factorize_flags() {
  FlagChoice flags = solver_flags(
      {"optimizer.lr", "train.epochs", "exchange.name", "exchange.servers", "exchange.staleness"});
  flags.defaults.emplace_back("train.epochs", kDefaultEpochsText);
  const std::pair<std::string_view, std::string_view> own[] = {
      {"optimizer.lr", "Learning rate of the first epoch."},
      {"train.epochs", "Number of passes over the entries."},
      {"exchange.name",
       "The ranks pass blocks of H around (all-reduce), or server shards hold H "
       "(parameter-server)."},
      {"exchange.servers", "parameter-server: number of server shards. Each shard is a process of its own."},
      {"exchange.staleness",
       "parameter-server: how many steps old a row of H may be when a rank reads it: 0 "
       "(synchronous), a number, or inf."}};
  flags.meanings.insert(flags.meanings.end(), std::begin(own), std::end(own));
  return flags;
}

int run_factorize(const Invocation& invocation) {
  Config config = invocation.flags.read();
  count_solver_ranks(config);
  if (!is_given(config.origins, "train.epochs")) config.spec.train.epochs = kDefaultEpochs;
  // Factorization does not use recipes, because their learning rates are for networks.
  if (!is_given(config.origins, "optimizer.lr")) config.spec.optimizer.lr = OptimizerSpec{}.lr;
  return factorize_command(config.spec, invocation.factorize, invocation.options);
}

}  // namespace

void add_factor_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& command = add_command(
      app, invocation,
      {.name = "factorize",
       .group = kTrainGroup,
       .summary = "Factorize a matrix of ratings, V = W H",
       .details =
           "The ranks pass blocks of H around in rotation (DSGD: Gemulla et al., KDD 2011; STRADS: Kim et "
           "al., EuroSys 2016). With --exchange parameter-server, H is stored on server shards instead. "
           "Without RATINGS, the command generates a matrix. Training takes 20 epochs unless --epochs or "
           "train.epochs is given. The command uses two ranks unless -n or hosts are given.",
       .examples = {"starling factorize", "starling factorize -n 4 --factors 32 ratings.txt",
                    "starling factorize --exchange parameter-server --staleness 1"}},
      [&invocation] { return run_factorize(invocation); });
  FactorizeSpec& what = invocation.factorize;
  command.add_option("RATINGS", what.ratings, "Text file with \"row column value\" on each line")
      ->type_name("");
  add_number_option(command, "--factors", what.factors, "Factors per row and per column", "K", 1, 65536);
  add_number_option(command, "--l2", what.l2, "L2 penalty on the factors", "X", 0, 1e6);
  add_number_option(command, "--lr-decay", what.lr_decay,
                    "Factor by which the learning rate is multiplied after each epoch", "X", 0, 1);
  add_number_option(command, "--test-share", what.test_share,
                    "Fraction of the entries that is kept for testing", "X", 0, 0.9);
  add_number_option(command, "--priority", what.priority,
                    "Share of the rows that an epoch updates, drawn by their last changes", "X", 1e-3, 1);
  add_number_option(command, "--memory-limit", what.memory_limit_mb,
                    "Largest part of the matrix that a rank may hold, in MB. 0 sets no limit", "MB", 0, 1e9);
  command.add_option("--save-factors", what.save, "Folder for W.npy and H.npy")->type_name("DIR");
  command.add_option("--checkpoint", what.checkpoint, "Folder for checkpoints, from which a run goes on")
      ->type_name("DIR");
  add_number_option(command, "--checkpoint-every", what.checkpoint_every,
                    "Epochs between two checkpoints. 0 writes one at the end only", "N", 0, int64_t{1} << 40);
  add_number_option(command, "--rows", what.rows, "Rows of a generated matrix", "N", 1, 1 << 30);
  add_number_option(command, "--columns", what.columns, "Columns of a generated matrix", "N", 1, 1 << 30);
  add_number_option(command, "--entries", what.entries, "Known entries of a generated matrix", "N", 1,
                    int64_t{1} << 40);
  invocation.flags.add_flags(command, factorize_flags());
}

}  // namespace starling
