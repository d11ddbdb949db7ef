#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"

namespace starling {
namespace {

// The benchmark reads few samples, so that it starts at once, unless the configuration says otherwise.
RunSpec scaling_run(const Invocation& invocation) {
  Config config = invocation.flags.read();
  if (!is_given(config.origins, "data.samples")) config.spec.data.samples = 1024;
  if (!is_given(config.origins, "data.test_samples")) config.spec.data.test_samples = 16;
  return config.spec;
}

void add_layers_command(CLI::App& bench, Invocation& invocation) {
  CLI::App& layers = add_command(
      bench, invocation,
      {.name = "layers",
       .group = "Commands",
       .summary = "Measure convolutional and fully connected layers on the CPU and the GPU",
       .details = "Times the forward and the backward pass of each layer with each algorithm."},
      [&invocation] { return bench_layers_command(invocation.bench_seconds, invocation.options); });
  add_number_option(layers, "--seconds", invocation.bench_seconds, "Approximate duration in seconds", "S", 0,
                    600);
}

void add_comm_command(CLI::App& bench, Invocation& invocation) {
  CLI::App& comm = add_command(
      bench, invocation,
      {.name = "comm",
       .group = "Commands",
       .summary = "Measure every collective with every algorithm",
       .details =
           "Starts the ranks, times each collective for a range of tensor sizes and checks the results. "
           "The exit status is 1 if a result is wrong.",
       .examples = {"starling bench comm -n 4 --set comm.shared_memory=false"}},
      [&invocation] {
        return bench_comm_command(checked_config(invocation, /*launches=*/true, /*trains=*/false).spec,
                                  invocation.bench_comm, invocation.options);
      });
  add_number_option(comm, "--seconds", invocation.bench_comm.seconds, "Approximate duration in seconds", "S",
                    0, 3600);
  comm.add_option("--smallest", invocation.bench_comm.smallest, "Size of the smallest tensor in bytes [256]")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->type_name("BYTES");
  comm.add_option("--largest", invocation.bench_comm.largest, "Size of the largest tensor in bytes [16MB]")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->type_name("BYTES");
  comm.add_flag("--tune", invocation.bench_comm.tune, "Store the fastest algorithms for later runs");
  invocation.flags.add_flags(comm, {.sections = {Section::kRanks, Section::kNetwork, Section::kEmulation}});
}

void add_scaling_command(CLI::App& bench, Invocation& invocation) {
  CLI::App& command = add_command(
      bench, invocation,
      {.name = "scaling",
       .group = "Commands",
       .summary = "Measure the throughput of 1 to 8 ranks and where the time of a step goes",
       .details = "Trains with each number of ranks: with shared memory, over a slow link, and with one slow "
                  "rank. Link and computation are emulated, so that one machine stands for several.",
       .examples = {"starling bench scaling --counts 1,2,4 --exchange local-sgd"}},
      [&invocation] {
        return bench_scaling_command(scaling_run(invocation), invocation.scaling, invocation.options);
      });
  ScalingSpec& scaling = invocation.scaling;
  command.add_option("--counts", scaling.counts, "Numbers of ranks to measure [1,2,4,8]")
      ->delimiter(',')
      ->type_name("N,…");
  command.add_flag("--strong", scaling.strong,
                   "Keep the batch of all ranks constant (strong scaling) instead of the batch per rank");
  add_number_option(command, "--batch", scaling.batch,
                    "Samples per rank and step; with --strong, samples over all ranks", "N", 1, 1 << 20);
  add_number_option(command, "--compute", scaling.compute_ms,
                    "Emulated computation per step in milliseconds. 0 uses the actual time", "MS", 0, 60000);
  command
      .add_option("--link", scaling.link,
                  "Emulation of the slow link, in the form of --emulate [bandwidth=100mbit,latency=1ms]")
      ->type_name("WHAT");
  command
      .add_option("--straggler", scaling.straggler,
                  "Emulation of the slow rank, in the form of --emulate [slow-rank=1:2x]")
      ->type_name("WHAT");
  add_number_option(command, "--bench-steps", scaling.steps, "Steps per measurement", "N", 6, 100000);
  invocation.flags.add_flags(command, {.sections = {Section::kModel, Section::kData, Section::kOptimizer,
                                                    Section::kParallel, Section::kNetwork}});
}

}  // namespace

void add_bench_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& bench = add_command(app, invocation,
                                {.name = "bench",
                                 .group = kCompareGroup,
                                 .summary = "Measure layers, collectives or scaling on this machine"},
                                nullptr);
  bench.require_subcommand(0, 1);
  add_layers_command(bench, invocation);
  add_comm_command(bench, invocation);
  add_scaling_command(bench, invocation);
}

}  // namespace starling
