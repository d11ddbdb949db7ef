// The hosts of a run: what launch.hosts and launch.hostfile say, and which ranks each of them gets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/config.h"
#include "starling/spec/run_spec.h"

namespace starling {

struct HostSlots {
  std::string name;  // as it was written: "node-a", "me@node-a", "10.0.0.1"
  int slots = 1;     // ranks that it takes at most
};

// "a,b:2,[fe80::1]:4". ConfigError where that is no list of hosts, or names one twice.
std::vector<HostSlots> parse_hosts(std::string_view text);
// A line each: "name slots=N", "name:N" or "name"; # begins a comment. `path` is for messages. ConfigError as above.
std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& path);
// The hosts that the run names; none: it stays on this one. Reads the hostfile. ConfigError, also where both are named.
std::vector<HostSlots> hosts_of(const LaunchSpec& spec);

// Where hosts are named and train.ranks is not: one rank a slot, servers aside. In the process that launches only: the hostfile
// need not be on the other hosts.
void count_ranks(Config& config);

// How many of `processes` each host gets: hosts are filled in order, and those that get none are left out. ConfigError where the slots are
// too few.
std::vector<HostSlots> share_out(const std::vector<HostSlots>& hosts, int processes);

}  // namespace starling
