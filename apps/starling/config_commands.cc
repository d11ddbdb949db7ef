#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/starling/invocation.h"
#include "starling/run/message/exit_status.h"
#include "starling/spec/describe.h"
#include "starling/spec/print.h"
#include "starling/spec/schema.h"
#include "starling/spec/validate.h"

namespace starling {
namespace {

// Prints the configuration before checking it, so that the user sees an invalid combination, too.
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

// Prints what each key is. Texts are separated by a blank line, and JSON has a line per key.
int explain_keys(const Invocation& invocation) {
  const bool json = invocation.options.json;
  if (invocation.keys.empty())
    throw ConfigError("starling config explain",
                      "name a key, a flag or a table, for example optimizer.lr, --lr or optimizer");
  std::string text;
  for (const std::string& key : invocation.keys) {
    if (!json && !text.empty()) text += "\n";
    text += json ? explain_json(key) + "\n" : explain(key);
  }
  fmt::print("{}", text);
  return kExitOk;
}

}  // namespace

void add_config_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& config =
      add_command(app, invocation,
                  {.name = "config",
                   .group = kInspectGroup,
                   .summary = "Show, check and explain the configuration of a run",
                   .examples = {"starling config show -c job.toml --lr 0.1", "starling config explain --lr"}},
                  nullptr);
  config.require_subcommand(0, 1);
  CLI::App& show_command = add_command(
      config, invocation,
      {.name = "show",
       .group = "Commands",
       .summary = "Print every value of the configuration and its origin",
       .details = "The output is itself a configuration file. The command then checks the configuration.",
       .examples = {"starling config show -c job.toml --lr 0.1"}},
      [&invocation] { return show(invocation); });
  invocation.flags.add_flags(show_command);
  CLI::App& schema_command = add_command(
      config, invocation,
      {.name = "schema", .group = "Commands", .summary = "Print a JSON Schema of configuration files"},
      [&invocation] { return print_schema(invocation); });
  schema_command.add_flag("--markdown", invocation.markdown, "Print the reference page in Markdown instead");
  CLI::App& explain_command =
      add_command(config, invocation,
                  {.name = "explain",
                   .group = "Commands",
                   .summary = "Describe keys, or list the keys of a table",
                   .examples = {"starling config explain optimizer.lr", "starling config explain --lr",
                                "starling config explain exchange"}},
                  [&invocation] { return explain_keys(invocation); });
  explain_command
      .add_option("KEY", invocation.keys,
                  "Keys, flags or tables, for example optimizer.lr, --lr or optimizer")
      ->type_name("");
  for (const SchemaEntry& entry : schema()) {
    if (entry.flags.empty()) continue;
    explain_command
        .add_flag_callback(
            std::string(entry.flags), [&invocation, &entry] { invocation.keys.emplace_back(entry.key); }, "")
        ->group("");
  }
}

}  // namespace starling
