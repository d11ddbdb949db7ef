#include <unistd.h>

#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"
#include "apps/starling/solver.h"
#include "starling/commands/place_policy.h"
#include "starling/launch/environment.h"
#include "starling/spec/hosts.h"

namespace starling {
namespace {

int run_place(const Invocation& invocation) {
  Config config = invocation.flags.read();
  const ProcessIdentity identity = read_environment(::environ).identity;
  const bool alone = identity.origin == ProcessOrigin::kAlone;
  // A job of one process has no server, and the number of ranks of a started job is known later.
  if (alone ? !is_given(config.origins, "train.ranks") : identity.world_size > 1)
    config.spec.train.ranks = kUsualRanks;
  if (alone) {
    Config job = config;
    job.spec = policy_spec(config.spec);  // the slots of the hosts are for a server, too
    count_ranks(job);
    config.spec.train.ranks = job.spec.train.ranks;
  }
  return place_command(config.spec, invocation.place, invocation.options);
}

void add_numbers(CLI::App& command, PlaceSpec& what) {
  add_number_option(command, "--micro-batches", what.micro_batches, "Micro-batches of a step", "M", 1, 1024);
  add_number_option(command, "--samples", what.samples, "Samples of a step of a model", "N", 1,
                    int64_t{1} << 20);
  add_number_option(command, "--pixels", what.pixels,
                    "Largest height and width of pictures. 0 takes those for which the model is published",
                    "N", 0, 4096);
  add_number_option(command, "--latency", what.latency_us,
                    "Latency of a link in microseconds. It is measured for a model on two ranks, and 50 "
                    "otherwise",
                    "US", 0, 1e9);
  add_number_option(
      command, "--bandwidth", what.bandwidth_mb_s,
      "Bandwidth of a link in MB/s. It is measured for a model on two ranks, and 1000 otherwise", "MB", 1e-6,
      1e9);
  add_number_option(command, "--rounds", what.rounds,
                    "Measured steps of each placement. The default is 15, and 5 in the example", "N", 1,
                    100'000);
  add_number_option(command, "--moves", what.moves, "Moves of simulated annealing", "N", 1, int64_t{1} << 40);
  add_number_option(command, "--updates", what.updates, "Updates of the policy on each rank", "N", 1,
                    int64_t{1} << 40);
  add_number_option(command, "--policy-lr", what.policy_lr, "Learning rate of the policy", "X", 1e-9, 10);
}

}  // namespace

void add_place_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& command = add_command(
      app, invocation,
      {.name = "place",
       .group = kInspectGroup,
       .summary = "Find a device for each group of operations of a model",
       .details =
           "Dynamic programming, simulated annealing and a policy gradient (arXiv 1706.04972) search for "
           "placements. A simulation of a step with the measured blocks and links gives their cost. The "
           "ranks train the policy asynchronously through a parameter server. Without MODEL, the command "
           "places a graph with branches and a small transformer, and measures the best placements of the "
           "latter. It uses two ranks unless -n or hosts are given.",
       .examples = {"starling place", "starling place resnet18 --devices 0.2,0.1 --measure --rounds 3",
                    "starling place googlenet --branches --devices 1:2GB,0.5",
                    "starling place graph.json --updates 300"}},
      [&invocation] { return run_place(invocation); });
  PlaceSpec& what = invocation.place;
  command.add_option("MODEL", what.model, "A model of the zoo, towers, or a graph in a JSON file")
      ->type_name("");
  command
      .add_option("--devices", what.devices,
                  "Speeds of the devices, relative to a rank, with optional memories. The default is 1,0.5, "
                  "or what the file names")
      ->type_name("LIST");
  add_numbers(command, what);
  command.add_flag("--branches", what.branches, "Place the parallel branches of a block by themselves");
  command.add_flag("--measure", what.measure,
                   "Measure the three best placements that are stages, and compare them with the prediction");
  command.add_option("--save-graph", what.save_graph, "JSON file for the graph with its measured times")
      ->type_name("FILE");
  invocation.flags.add_flags(command, solver_flags());
}

}  // namespace starling
