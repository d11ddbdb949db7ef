#include "starling/place/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"

namespace starling {
namespace {

// Returns a number from `low` to `high`, equal on every machine.
double drawn(std::mt19937_64& random, double low, double high) {
  return low + (high - low) * uniform_of(random());
}

void check_group(const PlacementGraph& graph, size_t index, const std::string& where) {
  const OperationGroup& group = graph.groups[index];
  const std::array<std::pair<const char*, double>, 6> numbers = {{{"forward_s", group.forward_s},
                                                                  {"backward_s", group.backward_s},
                                                                  {"update_s", group.update_s},
                                                                  {"state_bytes", group.state_bytes},
                                                                  {"kept_bytes", group.kept_bytes},
                                                                  {"output_bytes", group.output_bytes}}};
  for (const auto& [name, value] : numbers) {
    if (!std::isfinite(value) || value < 0)
      throw ConfigError(where, fmt::format("group \"{}\" has {} {}, which must be a finite number from 0",
                                           group.name, name, value));
  }
  for (size_t i = 0; i < group.inputs.size(); ++i) {
    const int input = group.inputs[i];
    if (input < 0 || static_cast<size_t>(input) >= index)
      throw ConfigError(where, fmt::format("group \"{}\" takes group {} as an input, but must come after all "
                                           "of its inputs; it has number {}",
                                           group.name, input, index));
    if (std::count(group.inputs.begin(), group.inputs.end(), input) > 1)
      throw ConfigError(where, fmt::format("group \"{}\" names the input \"{}\" twice; name it once",
                                           group.name, graph.groups[static_cast<size_t>(input)].name));
  }
}

}  // namespace

bool PlacementGraph::is_chain() const {
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::vector<int>& inputs = groups[i].inputs;
    if (i == 0 ? !inputs.empty() : inputs != std::vector<int>{static_cast<int>(i) - 1}) return false;
  }
  return !groups.empty();
}

int DeviceTopology::fastest() const {
  const auto slower = [](const PlacementDevice& a, const PlacementDevice& b) { return a.speed < b.speed; };
  return static_cast<int>(std::max_element(devices.begin(), devices.end(), slower) - devices.begin());
}

DeviceTopology connected_devices(const std::vector<double>& speeds, const DeviceLink& link,
                                 double memory_bytes) {
  DeviceTopology topology;
  for (size_t d = 0; d < speeds.size(); ++d)
    topology.devices.push_back({fmt::format("device {}", d), speeds[d], memory_bytes});
  topology.links.assign(speeds.size(), std::vector<DeviceLink>(speeds.size(), link));
  return topology;
}

void check_graph(const PlacementGraph& graph, const std::string& where) {
  if (graph.groups.empty()) throw ConfigError(where, "has no operation groups; name at least one");
  double seconds = 0, bytes = 0;
  for (size_t i = 0; i < graph.groups.size(); ++i) {
    check_group(graph, i, where);
    const OperationGroup& group = graph.groups[i];
    seconds += group.forward_s + group.backward_s + group.update_s;
    bytes += group.state_bytes + group.kept_bytes + group.output_bytes;
  }
  if (!(seconds > 0) || !std::isfinite(seconds) || !std::isfinite(bytes))
    throw ConfigError(where,
                      fmt::format("the groups take {} s and {} bytes together; give finite numbers, and "
                                  "a time above 0 to at least one group",
                                  seconds, bytes));
}

void check_topology(const DeviceTopology& topology, const std::string& where) {
  if (topology.devices.empty()) throw ConfigError(where, "names no device; name at least one");
  if (topology.devices.size() > kMostDevices)
    throw ConfigError(where, fmt::format("names {} devices; the largest number is {}",
                                         topology.devices.size(), kMostDevices));
  for (const PlacementDevice& device : topology.devices) {
    if (!std::isfinite(device.speed) || device.speed <= 0)
      throw ConfigError(where, fmt::format("\"{}\" has the speed {}, which must be a finite number above 0",
                                           device.name, device.speed));
    if (!(device.memory_bytes > 0))
      throw ConfigError(where, fmt::format("\"{}\" has {} bytes of memory, which must be above 0",
                                           device.name, device.memory_bytes));
  }
  for (const std::vector<DeviceLink>& row : topology.links) {
    for (const DeviceLink& link : row) {
      if (!(link.bytes_per_s > 0) || !std::isfinite(link.latency_s) || link.latency_s < 0)
        throw ConfigError(where, fmt::format("a link has {} bytes/s and a latency of {} s; write a bandwidth "
                                             "above 0 and a finite latency from 0",
                                             link.bytes_per_s, link.latency_s));
    }
  }
}

PlacementGraph make_towers(int towers, int depth, uint64_t seed) {
  std::mt19937_64 random(seed);
  PlacementGraph graph;
  graph.name = fmt::format("{} towers of {} groups", towers, depth);
  const auto add = [&](std::string name, const char* kind, std::vector<int> inputs) {
    OperationGroup group;
    group.name = std::move(name);
    group.kind = kind;
    group.forward_s = drawn(random, 1e-3, 8e-3);
    group.backward_s = 2 * group.forward_s;
    group.state_bytes = drawn(random, 1e6, 8e6);
    group.output_bytes = drawn(random, 1e4, 1e6);
    group.kept_bytes = group.output_bytes;
    group.inputs = std::move(inputs);
    graph.groups.push_back(std::move(group));
    return static_cast<int>(graph.groups.size()) - 1;
  };
  const int first = add("first", "embedding", {});
  std::vector<int> ends;
  for (int t = 0; t < towers; ++t) {
    int last = first;
    for (int i = 0; i < depth; ++i) last = add(fmt::format("tower{}.{}", t, i), "conv", {last});
    ends.push_back(last);
  }
  add("join", "linear", ends);
  return graph;
}

}  // namespace starling
