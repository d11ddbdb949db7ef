#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/starling/invocation.h"
#include "starling/run/exit_status.h"
#include "starling/spec/describe.h"
#include "starling/spec/print.h"
#include "starling/spec/validate.h"

namespace starling {
namespace {

// Shows first and checks then, so that a wrong combination can be seen.
int show(const Invocation& invocation) {
  const Config config = invocation.flags.read();
  fmt::print("{}", invocation.options.json ? config_to_json_line(config) + "\n" : config_to_toml(config));
  std::fflush(stdout);
  checked_config(invocation);
  return kExitOk;
}

int print_schema(const Invocation& invocation) {
  fmt::print("{}", invocation.markdown ? schema_markdown() : json_schema());
  return kExitOk;
}

int explain_key(const Invocation& invocation) {
  fmt::print("{}", invocation.options.json ? explain_json(invocation.key) + "\n" : explain(invocation.key));
  return kExitOk;
}

}  // namespace

void add_config_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& config = add_command(app, invocation, "config", "Show and explain the configuration", nullptr);
  config.require_subcommand(0, 1);
  CLI::App& show_command = add_command(config, invocation, "show",
                                       "Print every value and where it came from, as a configuration file",
                                       [&invocation] { return show(invocation); });
  invocation.flags.add_flags(show_command);
  CLI::App& schema_command =
      add_command(config, invocation, "schema", "Print a JSON Schema of configuration files",
                  [&invocation] { return print_schema(invocation); });
  schema_command.add_flag("--markdown", invocation.markdown, "Print docs/configuration.md instead");
  CLI::App& explain_command =
      add_command(config, invocation, "explain", "Describe one key, or the keys of a table",
                  [&invocation] { return explain_key(invocation); });
  explain_command.add_option("KEY", invocation.key, "For example optimizer.lr, or optimizer")
      ->required()
      ->type_name("");
}

}  // namespace starling
