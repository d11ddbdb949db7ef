#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"

namespace starling {

void add_zoo_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& zoo = add_command(app, invocation, "zoo", "The networks that Starling knows", nullptr);
  zoo.require_subcommand(0, 1);
  add_command(zoo, invocation, "ls", "List them",
              [&invocation] { return zoo_ls_command(invocation.options); });
  CLI::App& show =
      add_command(zoo, invocation, "show",
                  "Layers of one: weights |W|, inputs |D|, FLOPs, and how to divide it", [&invocation] {
                    Config config = invocation.flags.read();
                    apply_flag(config, *find_entry("model.name"), "MODEL", invocation.model);
                    return zoo_show_command(config.spec.model, invocation.zoo_show, invocation.options);
                  });
  show.add_option("MODEL", invocation.model, "A name of zoo ls; its sizes by --set model.…")
      ->required()
      ->type_name("");
  show.add_option("--batch", invocation.zoo_show.batch, "Samples of a step over all ranks [1024]")
      ->type_name("N");
  show.add_option("--pixels", invocation.zoo_show.pixels, "Width and height of a picture [the model's usual]")
      ->type_name("N");
}

}  // namespace starling
