#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"

namespace starling {

void add_plan_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& plan = add_command(app, invocation, "plan", "Say what a run would need, before it runs", nullptr);
  plan.require_subcommand(0, 1);
  CLI::App& memory = add_command(
      plan, invocation, "memory", "Bytes of model states a rank, for each --shard", [&invocation] {
        return plan_memory_command(invocation.flags.read(), invocation.plan_params, invocation.options);
      });
  memory
      .add_option("--params", invocation.plan_params,
                  "Parameters of a model that is none of the zoo's, as 7.5e9; then precision is bf16 and the "
                  "optimizer adam unless they are given")
      ->type_name("N");
  invocation.flags.add_flags(memory);
}

}  // namespace starling
