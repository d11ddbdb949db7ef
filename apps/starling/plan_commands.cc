#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"

namespace starling {

void add_plan_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& plan = add_command(
      app, invocation,
      {.name = "plan",
       .group = kInspectGroup,
       .summary = "Compute what a run needs before it starts",
       .examples = {"starling plan memory --model gpt -n 8", "starling plan memory --params 7.5e9 -n 64"}},
      nullptr);
  plan.require_subcommand(0, 1);
  CLI::App& memory = add_command(
      plan, invocation,
      {.name = "memory",
       .group = "Commands",
       .summary = "Print the memory of the model states per rank for each value of --shard",
       .details = "Model states are parameters, gradients and optimizer states.",
       .examples = {"starling plan memory --model gpt -n 8 --mesh replica=4,stage=2",
                    "starling plan memory --params 7.5e9 -n 64"}},
      [&invocation] {
        return plan_memory_command(invocation.flags.read(), invocation.plan_params, invocation.options);
      });
  memory
      .add_option(
          "--params", invocation.plan_params,
          "Number of parameters of a model that is not in the zoo, for example 7.5e9. The precision is then "
          "bf16 and the optimizer adam unless they are given")
      ->type_name("N");
  invocation.flags.add_flags(
      memory, {.sections = {},
               .keys = {"model.name", "data.source", "optimizer.name", "train.ranks", "train.precision",
                        "train.mesh", "train.shard", "pipeline.schedule"}});
}

}  // namespace starling
