#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"

namespace starling {

void add_bench_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& bench =
      add_command(app, invocation, "bench", "Measure parts of Starling on this machine", nullptr);
  bench.require_subcommand(0, 1);
  CLI::App& layers = add_command(
      bench, invocation, "layers", "Convolution and fully connected layers, CPU and GPU",
      [&invocation] { return bench_layers_command(invocation.bench_seconds, invocation.options); });
  layers.add_option("--seconds", invocation.bench_seconds, "How long to measure, about [6]")
      ->check(CLI::Range(0.0, 600.0))
      ->type_name("S");
  CLI::App& comm =
      add_command(bench, invocation, "comm",
                  "Collectives by each algorithm: starling bench comm -n 4 --set comm.shared_memory=false",
                  [&invocation] {
                    return bench_comm_command(checked_config(invocation, /*launches=*/true).spec,
                                              invocation.bench_comm, invocation.options);
                  });
  comm.add_option("--seconds", invocation.bench_comm.seconds, "How long to measure, about [10]")
      ->check(CLI::Range(0.0, 3600.0))
      ->type_name("S");
  comm.add_option("--smallest", invocation.bench_comm.smallest, "Bytes of the smallest tensor [256]")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES");
  comm.add_option("--largest", invocation.bench_comm.largest, "Bytes of the largest tensor [16MB]")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES");
  comm.add_flag("--tune", invocation.bench_comm.tune, "Keep the fastest algorithms for later runs");
  invocation.flags.add_flags(comm);
}

}  // namespace starling
