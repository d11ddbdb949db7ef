// What device placement works on: a model as a graph of operation groups, and the devices that execute them.
//
// A group is what is placed as a whole, such as a layer or a branch of a module. An output of a group goes to
// every group that names it as an input. Groups are in topological order, so inputs have lower indices.
// Source: Mirhoseini et al., Device Placement Optimization with Reinforcement Learning (arXiv 1706.04972).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace starling {

// One group of operations. Times are those of a device of speed 1.
struct OperationGroup {
  std::string name;
  std::string kind = "block";  // of its operations, such as "conv"; the policy embeds it
  double forward_s = 0;        // of one micro-batch
  double backward_s = 0;       // of one micro-batch
  double update_s = 0;         // of its parameters, once per step
  double state_bytes = 0;      // parameters, gradients and optimizer states
  double kept_bytes = 0;       // what one micro-batch keeps until its backward
  double output_bytes = 0;     // of one micro-batch; its gradient has as many
  std::vector<int> inputs = {};
};

// A model as groups in topological order.
struct PlacementGraph {
  std::string name;
  std::vector<OperationGroup> groups;
  // Returns true if group 0 has no input and every other group i has the only input i − 1.
  bool is_chain() const;
};

// A device that executes one operation group at a time.
struct PlacementDevice {
  std::string name;
  double speed = 1;  // a group takes its time divided by the speed
  double memory_bytes = std::numeric_limits<double>::infinity();
};

// A connection in one direction, which carries one message at a time.
struct DeviceLink {
  double latency_s = 0;  // added after the message has passed; the link is then free
  double bytes_per_s = std::numeric_limits<double>::infinity();
  // Returns how long a message occupies the link.
  double occupied_s(double bytes) const { return bytes / bytes_per_s; }
};

// The largest number of devices.
inline constexpr size_t kMostDevices = 16;

// Devices and the links between them.
struct DeviceTopology {
  std::vector<PlacementDevice> devices;
  std::vector<std::vector<DeviceLink>> links;  // links[a][b]: from device a to device b; [a][a] is not used
  // The number of devices.
  int size() const { return static_cast<int>(devices.size()); }
  // Returns the fastest device. The first one of equals.
  int fastest() const;
};

// The device of each group.
using Placement = std::vector<int>;

// Returns devices of these speeds, named "device 0" and so on, which are all connected by equal links.
DeviceTopology connected_devices(const std::vector<double>& speeds, const DeviceLink& link,
                                 double memory_bytes = std::numeric_limits<double>::infinity());

// Checks a graph. Errors: ConfigError (`where`) that names the group for a number that is negative or not
// finite, for an input that is no earlier group, and for a repeated input. Also for a graph without groups,
// and for one whose times or bytes add up to no finite number, or whose times add up to 0.
void check_graph(const PlacementGraph& graph, const std::string& where);

// Checks devices and links. Errors: ConfigError (`where`) for no device or more than kMostDevices, for a
// speed, memory or bandwidth that is not above 0, and for a latency that is negative or not finite.
void check_topology(const DeviceTopology& topology, const std::string& where);

// Returns a graph with `towers` parallel chains of `depth` groups between one first and one last group. Times
// and bytes are a function of the seed.
PlacementGraph make_towers(int towers, int depth, uint64_t seed);

}  // namespace starling
