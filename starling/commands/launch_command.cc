#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "starling/commands/commands.h"
#include "starling/run/message/dry_run.h"
#include "starling/run/rank_program.h"
#include "starling/spec/hosts.h"

namespace starling {

int launch_command(const RunSpec& spec, const std::vector<std::string>& program,
                   const CommandOptions& options) {
  if (options.dry_run) {
    const int processes = static_cast<int>(spec.train.ranks + servers_of(spec));
    std::vector<HostSlots> hosts = hosts_of(spec.launch);
    hosts = hosts.empty() ? std::vector<HostSlots>{{"this host", processes}} : share_out(hosts, processes);
    std::vector<std::string> lines;
    for (const HostSlots& host : hosts)
      lines.push_back(
          fmt::format("would start {} on {}: {}", host.slots, host.name, fmt::join(program, " ")));
    print_dry_run(fmt::format("{}", fmt::join(lines, "\n")), options.json);
    return 0;
  }
  RankProgram ranks;
  ranks.argv = program;
  ranks.output = {options.json, options.verbosity, options.color};
  ranks.keep = !spec.run.dir.empty();
  return launch_program(spec, ranks, read_environment(::environ));
}

}  // namespace starling
