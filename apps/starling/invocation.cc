#include "apps/starling/invocation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <thread>

#include "starling/launch/environment.h"
#include "starling/spec/hosts.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/validate.h"

namespace starling {

Config checked_config(const Invocation& invocation, bool launches, bool trains) {
  Config config = invocation.flags.read();
  const ProcessIdentity self = read_environment(::environ).identity;
  if (launches && self.origin == ProcessOrigin::kAlone) count_ranks(config);
  // A rank that was started has the world's number of them, whatever -n says.
  if (launches && self.origin != ProcessOrigin::kAlone) {
    const int64_t servers = has_servers(config.spec) ? config.spec.exchange.servers : 0;
    config.spec.train.ranks = std::max<int64_t>(1, self.world_size - servers);
  }
  if (!trains) config.spec.train.global_batch = config.spec.train.ranks;
  // The launcher itself warns when its ranks are more than the cores, and has given the other warnings before it began; under
  // other launchers they may be on other hosts.
  const int cores = launches ? 0 : static_cast<int>(std::thread::hardware_concurrency());
  const bool silent =
      invocation.options.verbosity < 0 || self.rank > 0 || self.origin == ProcessOrigin::kLauncher;
  for (const std::string& warning : validate(config.spec, config.origins, cores)) {
    if (!silent) fmt::print(stderr, "starling: warning: {}\n", warning);
  }
  return config;
}

CLI::App& add_command(CLI::App& parent, Invocation& invocation, const std::string& name,
                      const std::string& help, std::function<int()> action) {
  CLI::App& command = *parent.add_subcommand(name, help);
  command.fallthrough()->group("Commands");
  command.footer("And the options of every command: starling --help.");
  if (action) command.callback([&invocation, action = std::move(action)] { invocation.action = action; });
  return command;
}

}  // namespace starling
