#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"
#include "apps/starling/solver.h"

namespace starling {
namespace {

constexpr int64_t kAutoencoderSteps = 200;  // of each layer
constexpr double kAutoencoderRate = 0.001;
constexpr const char* kRateText = "0.001";  // in the help

// Undoes what the recipe of a model has set, because the autoencoder is no model of the zoo.
void undo_recipe(Config& config) {
  const auto reset = [&config]<typename T>(const char* key, T& value, const T& standard) {
    if (!is_given(config.origins, key)) value = standard;
  };
  const OptimizerSpec optimizer;
  OptimizerSpec& ours = config.spec.optimizer;
  reset("optimizer.name", ours.name, optimizer.name);
  reset("optimizer.lr", ours.lr, kAutoencoderRate);
  reset("optimizer.momentum", ours.momentum, optimizer.momentum);
  reset("optimizer.nesterov", ours.nesterov, optimizer.nesterov);
  reset("optimizer.weight_decay", ours.weight_decay, optimizer.weight_decay);
  reset("optimizer.clip_norm", ours.clip_norm, optimizer.clip_norm);
  reset("schedule.name", config.spec.schedule.name, ScheduleSpec{}.name);
  reset("train.global_batch", config.spec.train.global_batch, TrainSpec{}.global_batch);
}

int run_autoencoder_command(const Invocation& invocation) {
  Config config = invocation.flags.read();
  count_solver_ranks(config);
  if (!is_given(config.origins, "train.steps") && !is_given(config.origins, "train.epochs"))
    config.spec.train.steps = kAutoencoderSteps;
  undo_recipe(config);
  return autoencoder_command(config.spec, invocation.autoencoder, invocation.options);
}

// Adds an option with one number for all layers, or one per layer.
void add_layer_option(CLI::App& command, const std::string& name, std::vector<int64_t>& numbers,
                      const std::string& help) {
  command.add_option(name, numbers, help)
      ->delimiter(',')
      ->check([](const std::string& text) { return refuse_number<int64_t>(text, 1, 1 << 20); })
      ->type_name("LIST");
}

}  // namespace

void add_autoencoder_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& command = add_command(
      app, invocation,
      {.name = "autoencoder",
       .group = kTrainGroup,
       .summary = "Train a locally connected autoencoder on a grid of ranks",
       .details =
           "Each rank holds the filters of its part of the image, and exchanges the edges of the part with "
           "its neighbors (Coates et al., \"Deep learning with COTS HPC systems\", ICML 2013). Each layer "
           "has filters, L2 pooling and local contrast normalization, and learns by itself as a sparse "
           "autoencoder. A list has one number for all layers, or one per layer between commas. The command "
           "uses two ranks unless -n or hosts are given, and 200 steps per layer unless --steps or --epochs "
           "is given.",
       .examples = {"starling autoencoder", "starling autoencoder -n 8 --grid 2x4 --data cifar-bin:DIR",
                    "starling autoencoder --maps 16 --fields 8,4,2 --strides 2,1,1 --epochs 2"}},
      [&invocation] { return run_autoencoder_command(invocation); });
  AutoencoderSpec& what = invocation.autoencoder;
  command
      .add_option(
          "--grid", what.grid,
          "Rows and columns of ranks, for example 2x4. The default is the grid whose sides differ least")
      ->type_name("RxC");
  add_layer_option(command, "--maps", what.maps, "Filters at each position [8]");
  add_layer_option(command, "--fields", what.fields, "Pixels per side of a receptive field [8,4]");
  add_layer_option(command, "--strides", what.strides, "Pixels between receptive fields [2,1]");
  add_layer_option(command, "--pools", what.pools, "Positions per side of a pool [3]");
  add_layer_option(command, "--pool-strides", what.pool_strides, "Positions between pools [1]");
  add_layer_option(command, "--norms", what.norms, "Pools per side of a normalization window; odd [3]");
  add_number_option(command, "--sparsity", what.sparsity, "Penalty λ on the outputs of pools", "X", 0, 1e300);
  add_number_option(command, "--memory-limit", what.memory_limit_mb,
                    "Largest state of a rank: filters, gradients and momenta, in MB. 0 sets no limit", "MB",
                    0, 1e9);
  command.add_option("--checkpoint", what.checkpoint, "Folder for checkpoints, from which a run goes on")
      ->type_name("DIR");
  add_number_option(command, "--checkpoint-every", what.checkpoint_every,
                    "Steps between two checkpoints. 0 writes one at the end only", "N", 0, int64_t{1} << 40);
  command.add_option("--save-filters", what.save, "Folder for the filters of each layer (.npy)")
      ->type_name("DIR");
  command
      .add_option("--save-features", what.save_features,
                  "File for what the last layer makes of each training image (.npy)")
      ->type_name("FILE");
  invocation.flags.add_flags(
      command, {.sections = {Section::kNetwork},
                .keys = {"train.ranks", "train.threads", "launch.hosts", "launch.hostfile", "launch.command",
                         "data.source", "data.order", "optimizer.lr", "train.epochs", "train.steps",
                         "train.global_batch", "train.precision", "train.seed"},
                .defaults = {{"optimizer.lr", kRateText}, {"train.ranks", "2"}, {"train.steps", "200"}},
                .meanings = {{"data.source",
                              "Images: idx:DIR, cifar-bin:DIR, images:PATH, served:HOST:PORT[,key=FILE], or "
                              "the generated set digits."},
                             {"train.ranks", "Number of processes that share the work."},
                             {"train.seed", "Seed of all random numbers of the command."}}});
}

}  // namespace starling
