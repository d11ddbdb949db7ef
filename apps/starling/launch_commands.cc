#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>

#include "apps/starling/invocation.h"
#include "starling/base/error.h"
#include "starling/spec/hosts.h"

namespace starling {
namespace {

// What `launch` needs of the configuration; --set and -c reach the rest.
constexpr auto kKeys =
    std::to_array<std::string_view>({"train.ranks", "train.threads", "run.dir", "launch.hosts",
                                     "launch.hostfile", "launch.command", "comm.security"});

int run_launch(const Invocation& invocation) {
  Config config = invocation.flags.read();
  count_ranks(config);
  return launch_command(config.spec, invocation.launched, invocation.options);
}

}  // namespace

void add_launch_command(CLI::App& app, Invocation& invocation) {
  CLI::App& command =
      *app.add_subcommand("launch", "Start the ranks of any program, here or on hosts that ssh reaches");
  command.group("Commands")->prefix_command();
  command.footer(
      "What follows the options is the program and its arguments. A command of ours, such as train, takes "
      "the options itself: starling launch "
      "--hosts a,b train … is starling train … --hosts a,b. Any other program is looked up on each host, and "
      "finds its rank in RANK, WORLD_SIZE, "
      "LOCAL_RANK, MASTER_ADDR and MASTER_PORT.");
  command.callback([&invocation, &command] {
    invocation.launched = command.remaining();
    if (invocation.launched.empty())
      throw ConfigError(
          "starling launch",
          "name the program to start: starling launch --hosts a,b:2 PROGRAM ARGUMENT …, without --");
    if (invocation.launched.front().starts_with('-')) throw unknown_argument(invocation.launched.front());
    invocation.action = [&invocation] { return run_launch(invocation); };
  });
  add_global_options(command, invocation);
  invocation.flags.add_flags(command, kKeys);
}

std::vector<std::string> launched_command(const CLI::App& app, const Invocation& invocation) {
  const std::vector<std::string>&argv = invocation.options.argv, &launched = invocation.launched;
  const auto named = [&](const CLI::App* command) { return command->get_name() == launched.front(); };
  if (launched.empty() || app.get_subcommands(named).empty()) return {};
  const auto launch = std::find(argv.begin(), argv.end(), "launch");
  const auto behind = argv.end() - static_cast<std::ptrdiff_t>(launched.size());
  std::vector<std::string> words(argv.begin(), launch);
  words.insert(words.end(), behind, argv.end());
  words.insert(words.end(), launch + 1, behind);
  return words;
}

}  // namespace starling
