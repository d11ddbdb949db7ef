#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"

namespace starling {

void add_training_commands(CLI::App& app, Invocation& invocation) {
  using Command = int (*)(const RunSpec&, const CommandOptions&);
  const auto add = [&app, &invocation](const char* name, const char* help, Command command) {
    CLI::App& added = add_command(app, invocation, name, help, [&invocation, command] {
      return command(checked_config(invocation, /*launches=*/true).spec, invocation.options);
    });
    invocation.flags.add_flags(added);
  };
  add("train", "Train a network", train_command);
  add("eval", "Test a network: starling eval --init FILE.safetensors", eval_command);
  add("verify", "Compare training as configured with one process in fp64", verify_command);
}

}  // namespace starling
