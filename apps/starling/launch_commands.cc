#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/starling/invocation.h"
#include "starling/base/error.h"
#include "starling/spec/hosts.h"

namespace starling {
namespace {

// Returns the configuration keys whose flags `launch` takes. --set and -c set all other keys.
FlagChoice launch_flags() {
  return {.sections = {},
          .keys = {"train.ranks", "train.threads", "run.dir", "launch.hosts", "launch.hostfile",
                   "launch.command", "comm.security"},
          .accept_others = false};
}

int run_launch(const Invocation& invocation) {
  Config config = invocation.flags.read();
  count_ranks(config);
  return launch_command(config.spec, invocation.launched, invocation.options);
}

}  // namespace

void add_launch_command(CLI::App& app, Invocation& invocation) {
  CLI::App& command = *app.add_subcommand("launch");
  set_text(
      command,
      {.name = "launch",
       .group = kMachineGroup,
       .summary = "Start the ranks of any program on this host or over ssh",
       .details =
           "The words behind the options are the program and its arguments. A command of starling, such as "
           "train, takes the options itself: `starling launch --hosts a,b train ARGUMENTS` is "
           "`starling train ARGUMENTS --hosts a,b`.\n"
           "Any other program is looked up in PATH on each host. The program finds its rank in RANK, "
           "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.",
       .examples = {"starling launch --hosts node-a:4,node-b:4 train -c job.toml",
                    "starling launch -n 2 python3 train.py"}});
  command.prefix_command();
  command.callback([&invocation, &command] {
    invocation.launched = command.remaining();
    if (invocation.launched.empty())
      throw ConfigError(
          "starling launch",
          "name the program to start, without --: starling launch --hosts a,b:2 PROGRAM ARGUMENT …");
    if (invocation.launched.front().starts_with('-')) throw unknown_argument(invocation.launched.front());
    invocation.action = [&invocation] { return run_launch(invocation); };
  });
  add_global_options(command, invocation);
  invocation.flags.add_flags(command, launch_flags());
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
