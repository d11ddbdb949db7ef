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
}

}  // namespace starling
