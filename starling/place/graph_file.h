// Reads a placement graph, and its devices, from a JSON file.
//
//   {"groups": [
//      {"name": "stem", "kind": "conv", "forward_s": 0.002, "backward_s": 0.004, "output_bytes": 4e6},
//      {"name": "left", "forward_s": 0.001, "backward_s": 0.002, "inputs": ["stem"]}],
//    "devices": [{"name": "a", "speed": 1, "memory_bytes": 1e9}, {"name": "b", "speed": 0.5}],
//    "link": {"latency_s": 1e-4, "bytes_per_s": 1e9}}
//
// Numbers that are left out are 0, a left-out kind is "block", and a left-out memory is unlimited. "devices"
// and "link" may be left out, too, but a link needs devices. Inputs are names of groups that come before.
#pragma once

#include <optional>
#include <string>

#include "starling/place/graph.h"

namespace starling {

// What a file holds.
struct PlacementFile {
  PlacementGraph graph;
  std::optional<DeviceTopology> topology;  // empty if the file names no devices
};

// Parses the text of a file. Errors: ConfigError (`path`) that names what is wrong: no JSON or one that is
// nested deeper than 8 levels, an unknown or repeated name, an unknown key, a value of a wrong type, or
// numbers that check_graph() or check_topology() refuse.
PlacementFile parse_placement_file(const std::string& text, const std::string& path);

// Returns the text of a file with this graph and without devices. parse_placement_file() gives an equal
// graph.
std::string placement_file_text(const PlacementGraph& graph);

// Returns the text of a file. Errors: ConfigError (`path`) if it is a folder or cannot be read.
std::string read_placement_text(const std::string& path);

}  // namespace starling
