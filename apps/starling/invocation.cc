#include "apps/starling/invocation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "starling/launch/environment.h"
#include "starling/run/checked_config.h"

namespace starling {

Config checked_config(const Invocation& invocation, bool launches, bool trains) {
  return checked_config(invocation.flags.read(), read_environment(::environ), {launches, trains},
                        invocation.options.verbosity);
}

void set_text(CLI::App& command, const CommandText& text) {
  command.group(text.group);
  command.description(text.details.empty() ? text.summary : text.summary + "\n" + text.details);
  command.footer(fmt::format("{}", fmt::join(text.examples, "\n")));
}

CLI::App& add_command(CLI::App& parent, Invocation& invocation, const CommandText& text,
                      std::function<int()> action) {
  CLI::App& command = *parent.add_subcommand(text.name);
  command.fallthrough();
  set_text(command, text);
  if (action) command.callback([&invocation, action = std::move(action)] { invocation.action = action; });
  return command;
}

}  // namespace starling
