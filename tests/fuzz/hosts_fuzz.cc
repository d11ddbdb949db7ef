// Parses any text as the argument of --hosts, as a hostfile, as the lists of nodes and tasks that Slurm sets,
// or as environment variables. The parsers must refuse it with a ConfigError, or return hosts with names and
// at least one slot each, or the place of a process in its job.
#include <algorithm>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/launch/environment.h"
#include "starling/launch/slurm.h"
#include "starling/spec/hosts.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

// Returns whether the name of a host has only characters of names and addresses.
bool is_plain(const std::string& name) {
  return name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.@:_-") ==
         std::string::npos;
}

void check_hosts(const std::vector<HostSlots>& hosts) {
  require_property(!hosts.empty());
  int64_t slots = 0;
  bool plain = true;
  std::string again;
  for (const HostSlots& host : hosts) {
    require_property(!host.name.empty() && host.slots >= 1);
    slots += host.slots;
    plain = plain && is_plain(host.name);
    again += "[" + host.name + "] slots=" + std::to_string(host.slots) + "\n";
  }
  if (plain) {
    const auto parsed = parse_hostfile(again, "again");
    require_property(parsed.size() == hosts.size());
    for (size_t i = 0; i < hosts.size(); ++i)
      require_property(parsed[i].name == hosts[i].name && parsed[i].slots == hosts[i].slots);
  }
  int64_t shared = 0;
  const int processes = static_cast<int>(std::min<int64_t>(slots, 100));
  for (const HostSlots& host : share_out(hosts, processes)) shared += host.slots;
  require_property(shared == processes);
}

// Reads variables that stand on a line each.
void check_environment(std::string text) {
  std::vector<const char*> variables = {text.c_str()};
  for (char& c : text) {
    if (c != '\n') continue;
    c = '\0';
    variables.push_back(&c + 1);
  }
  variables.push_back(nullptr);
  const Environment read = read_environment(variables.data());
  const ProcessIdentity& id = read.identity;
  require_property(id.rank >= 0 && id.rank < id.world_size);
  require_property(id.local_rank >= 0 && id.local_rank < id.local_world_size);
  require_property(read.master_port >= 0 && read.master_port <= 65535);
  require_property(read.key_fd == -1 || read.key_fd >= 3);
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  const int kind = input.byte() % 5;
  const std::string text = input.text(size);
  try {
    if (kind == 0) check_hosts(parse_hosts(text));
    if (kind == 1) check_hosts(parse_hostfile(text, "f"));
    if (kind == 2) require_property(first_slurm_host(text).size() <= text.size() + 20);
    if (kind == 3)
      for (const int tasks : slurm_tasks_per_node(text)) require_property(tasks >= 0);
    if (kind == 4) check_environment(text);
  } catch (const ConfigError&) {
  }
  return 0;
}
