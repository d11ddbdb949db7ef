#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"

namespace starling {
namespace {

// Data that is there at once, unless the user names some.
RunSpec scaling_run(const Invocation& invocation) {
  Config config = invocation.flags.read();
  if (!config.origins.contains("data.samples")) config.spec.data.samples = 1024;
  if (!config.origins.contains("data.test_samples")) config.spec.data.test_samples = 16;
  return config.spec;
}

void add_scaling_command(CLI::App& bench, Invocation& invocation) {
  CLI::App& command = add_command(
      bench, invocation, "scaling", "Samples/s of 1 to 8 ranks against K times one, and where the time goes",
      [&invocation] {
        return bench_scaling_command(scaling_run(invocation), invocation.scaling, invocation.options);
      });
  ScalingSpec& scaling = invocation.scaling;
  command.add_option("--counts", scaling.counts, "Numbers of ranks [1,2,4,8]")
      ->delimiter(',')
      ->type_name("N,…");
  command.add_flag("--strong", scaling.strong, "The batch of all ranks stays the same, not that of a rank");
  add_number_option(command, "--batch", scaling.batch, "Samples of a rank's step; with --strong of all", "N",
                    1, 1 << 20);
  add_number_option(command, "--compute", scaling.compute_ms,
                    "Emulated computation of a step, by sleeping; 0 = as it is", "MS", 0, 60000);
  command
      .add_option("--link", scaling.link,
                  "Emulation of the slow link, as --emulate [bandwidth=100mbit,latency=1ms]")
      ->type_name("WHAT");
  command
      .add_option("--straggler", scaling.straggler,
                  "Emulation of the straggler, as --emulate [slow-rank=1:2x]")
      ->type_name("WHAT");
  add_number_option(command, "--bench-steps", scaling.steps, "Steps of a run", "N", 6, 100000);
  invocation.flags.add_flags(command);
}

}  // namespace

void add_bench_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& bench =
      add_command(app, invocation, "bench", "Measure parts of Starling on this machine", nullptr);
  bench.require_subcommand(0, 1);
  CLI::App& layers = add_command(
      bench, invocation, "layers", "Convolution and fully connected layers, CPU and GPU",
      [&invocation] { return bench_layers_command(invocation.bench_seconds, invocation.options); });
  add_number_option(layers, "--seconds", invocation.bench_seconds, "How long to measure, about", "S", 0, 600);
  CLI::App& comm = add_command(
      bench, invocation, "comm",
      "Collectives by each algorithm: starling bench comm -n 4 --set comm.shared_memory=false",
      [&invocation] {
        return bench_comm_command(checked_config(invocation, /*launches=*/true, /*trains=*/false).spec,
                                  invocation.bench_comm, invocation.options);
      });
  add_number_option(comm, "--seconds", invocation.bench_comm.seconds, "How long to measure, about", "S", 0,
                    3600);
  comm.add_option("--smallest", invocation.bench_comm.smallest, "Bytes of the smallest tensor [256]")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES");
  comm.add_option("--largest", invocation.bench_comm.largest, "Bytes of the largest tensor [16MB]")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES");
  comm.add_flag("--tune", invocation.bench_comm.tune, "Keep the fastest algorithms for later runs");
  invocation.flags.add_flags(comm);
  add_scaling_command(bench, invocation);
}

}  // namespace starling
