// The hosts of a run (launch.hosts, launch.hostfile) and the number of ranks on each host.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/config.h"
#include "starling/spec/run_spec.h"

namespace starling {

struct HostSlots {
  std::string name;  // as it was written: "node-a", "me@node-a", "10.0.0.1"
  int slots = 1;     // largest number of processes on the host: ranks and servers
};

// Parses "a,b:2,[fe80::1]:4". Throws ConfigError if the text is not a list of hosts or names a host twice.
std::vector<HostSlots> parse_hosts(std::string_view text);
// Parses a file with one host per line: "name slots=N", "name:N" or "name". A comment starts with #. `path`
// is for messages. Throws ConfigError as parse_hosts() does.
std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& path);
// Returns the hosts that the run names, or an empty list if all ranks run on this host. Reads the hostfile.
// Throws ConfigError, also if both keys are set, or if hosts are named and launch.start is "fork".
std::vector<HostSlots> hosts_of(const LaunchSpec& spec);

// If hosts are named and train.ranks is not set, sets train.ranks to the number of slots minus the number of
// servers. Then applies the recipes to the new number. Must be called only in the process that launches
// ranks, because other hosts may not have the hostfile.
void count_ranks(Config& config);

// Divides `processes` among the hosts. Hosts are filled in order, and hosts without processes are left out.
// Throws ConfigError if there are too few slots.
std::vector<HostSlots> share_out(const std::vector<HostSlots>& hosts, int processes);

}  // namespace starling
