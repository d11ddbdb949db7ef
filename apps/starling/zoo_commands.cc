#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/starling/invocation.h"
#include "starling/base/suggest.h"
#include "starling/run/message/exit_status.h"
#include "starling/spec/describe.h"
#include "starling/spec/schema.h"

namespace starling {
namespace {

int print_strategies(const Invocation& invocation) {
  if (!invocation.markdown) return strategies_command(invocation.strategy, invocation.options);
  if (!invocation.strategy.empty())
    throw ConfigError("--markdown", "prints all strategies: leave out \"" + invocation.strategy + "\"");
  fmt::print("{}", strategies_markdown());
  return kExitOk;
}

// Errors: ConfigError if the zoo has no such network.
void require_network(const std::string& name) {
  const std::vector<std::string> networks = allowed_words(*find_entry("model.name"), nullptr);
  if (std::find(networks.begin(), networks.end(), name) != networks.end()) return;
  const std::string near = nearest(name, networks);
  throw ConfigError(
      name,
      near.empty()
          ? fmt::format("unknown network: use one of {}", fmt::join(networks, ", "))
          : fmt::format("unknown network: did you mean {}? `starling zoo ls` lists the networks", near));
}

}  // namespace

void add_zoo_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& strategies = add_command(app, invocation,
                                     {.name = "strategies",
                                      .group = kInspectGroup,
                                      .summary = "List the parallel training algorithms",
                                      .examples = {"starling strategies", "starling strategies gossip"}},
                                     [&invocation] { return print_strategies(invocation); });
  strategies
      .add_option("NAME", invocation.strategy,
                  "Describe this algorithm only, for example gossip, mesh or lbfgs")
      ->type_name("");
  strategies.add_flag("--markdown", invocation.markdown,
                      "Print the tables of the manual in Markdown instead");
  CLI::App& zoo = add_command(app, invocation,
                              {.name = "zoo",
                               .group = kInspectGroup,
                               .summary = "List and describe the networks of the model zoo",
                               .examples = {"starling zoo ls", "starling zoo show alexnet --batch 256"}},
                              nullptr);
  zoo.require_subcommand(0, 1);
  add_command(zoo, invocation, {.name = "ls", .group = "Commands", .summary = "List the networks"},
              [&invocation] { return zoo_ls_command(invocation.options); });
  CLI::App& show = add_command(
      zoo, invocation,
      {.name = "show",
       .group = "Commands",
       .summary = "Describe the layers of a network",
       .details =
           "Prints weights |W|, inputs |D| and FLOPs per layer, and which kind of parallelism moves fewer "
           "bytes. --set model.KEY=VALUE changes the sizes of the network.",
       .examples = {"starling zoo show alexnet --batch 256"}},
      [&invocation] {
        Config config = invocation.flags.read();
        require_network(invocation.model);
        apply_flag(config, *find_entry("model.name"), "MODEL", invocation.model);
        return zoo_show_command(config.spec.model, invocation.zoo_show, invocation.options);
      });
  show.add_option("MODEL", invocation.model, "Name of a network, as `starling zoo ls` prints it")
      ->required()
      ->type_name("");
  show.add_option("--batch", invocation.zoo_show.batch, "Samples per step over all ranks [1024]")
      ->type_name("N");
  show.add_option("--pixels", invocation.zoo_show.pixels,
                  "Width and height of the images [the usual size for the network]")
      ->type_name("N");
}

}  // namespace starling
