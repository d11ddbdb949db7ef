#include "starling/place/graph_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/json_depth.h"
#include "starling/base/read_file.h"

namespace starling {
namespace {

using nlohmann::json;

constexpr int kDeepest = 8;  // levels of a file; a graph has 4

// Reads the members of one object of the file.
class FileObject {
 public:
  FileObject(const json& object, std::string path, std::string what, std::initializer_list<const char*> keys)
      : object_(object), path_(std::move(path)), what_(std::move(what)) {
    if (!object.is_object()) fail("must be an object");
    const std::vector<std::string> known(keys.begin(), keys.end());
    for (const auto& item : object.items()) {
      if (std::find(known.begin(), known.end(), item.key()) == known.end())
        fail(fmt::format("has the unknown key \"{}\"; the keys are {}", item.key(), fmt::join(known, ", ")));
    }
  }
  // Returns a number, or `otherwise` if it is left out.
  double number(const char* key, double otherwise) const {
    const auto it = object_.find(key);
    if (it == object_.end()) return otherwise;
    if (!it->is_number()) fail(fmt::format("has a \"{}\" that is no number", key));
    return it->get<double>();
  }
  // Returns a text, or `otherwise` if it is left out.
  std::string text(const char* key, const std::string& otherwise) const {
    const auto it = object_.find(key);
    if (it == object_.end()) return otherwise;
    if (!it->is_string()) fail(fmt::format("has a \"{}\" that is no text", key));
    return it->get<std::string>();
  }
  // Returns an array, which is empty if it is left out.
  json array(const char* key) const {
    const auto it = object_.find(key);
    if (it == object_.end()) return json::array();
    if (!it->is_array()) fail(fmt::format("has \"{}\", which must be an array", key));
    return *it;
  }
  [[noreturn]] void fail(const std::string& why) const { throw ConfigError(path_, what_ + " " + why); }

 private:
  const json& object_;
  const std::string path_, what_;
};

PlacementGraph graph_of(const FileObject& file, const std::string& path) {
  PlacementGraph graph;
  graph.name = path;
  std::map<std::string, int> numbers;
  for (const json& item : file.array("groups")) {
    const std::string what = fmt::format("group {}", graph.groups.size());
    const FileObject object(item, path, what,
                            {"name", "kind", "forward_s", "backward_s", "update_s", "state_bytes",
                             "kept_bytes", "output_bytes", "inputs"});
    OperationGroup group;
    group.name = object.text("name", what);
    group.kind = object.text("kind", group.kind);
    group.forward_s = object.number("forward_s", 0);
    group.backward_s = object.number("backward_s", 0);
    group.update_s = object.number("update_s", 0);
    group.state_bytes = object.number("state_bytes", 0);
    group.kept_bytes = object.number("kept_bytes", 0);
    group.output_bytes = object.number("output_bytes", 0);
    for (const json& input : object.array("inputs")) {
      const auto number = input.is_string() ? numbers.find(input.get<std::string>()) : numbers.end();
      if (number == numbers.end())
        object.fail(fmt::format("has the input {}, which is the name of no earlier group", input.dump()));
      group.inputs.push_back(number->second);
    }
    if (!numbers.emplace(group.name, static_cast<int>(graph.groups.size())).second)
      object.fail(fmt::format("is named \"{}\", as an earlier group is", group.name));
    graph.groups.push_back(std::move(group));
  }
  check_graph(graph, path);
  return graph;
}

DeviceTopology topology_of(const FileObject& file, const json& text, const std::string& path) {
  DeviceLink link;
  if (text.contains("link")) {
    const FileObject object(text["link"], path, "link", {"latency_s", "bytes_per_s"});
    link.latency_s = object.number("latency_s", link.latency_s);
    link.bytes_per_s = object.number("bytes_per_s", link.bytes_per_s);
  }
  DeviceTopology topology;
  for (const json& item : file.array("devices")) {
    const std::string what = fmt::format("device {}", topology.size());
    const FileObject object(item, path, what, {"name", "speed", "memory_bytes"});
    PlacementDevice device;
    device.name = object.text("name", what);
    device.speed = object.number("speed", device.speed);
    device.memory_bytes = object.number("memory_bytes", device.memory_bytes);
    topology.devices.push_back(std::move(device));
  }
  check_topology(topology, path);  // before links, whose number is the square of the devices'
  const auto count = static_cast<size_t>(topology.size());
  topology.links.assign(count, std::vector<DeviceLink>(count, link));
  check_topology(topology, path);
  return topology;
}

json parsed_text(const std::string& text, const std::string& path) {
  try {
    return parse_shallow<json>(text, kDeepest);
  } catch (const json::exception& error) {
    throw ConfigError(
        path, fmt::format("is no JSON of a graph ({}); see docs/explanation/placement.md", error.what()));
  }
}

}  // namespace

PlacementFile parse_placement_file(const std::string& text, const std::string& path) {
  const json parsed = parsed_text(text, path);
  const FileObject file(parsed, path, "the file", {"groups", "devices", "link"});
  PlacementFile result;
  result.graph = graph_of(file, path);
  if (parsed.contains("link") && !parsed.contains("devices"))
    file.fail("has a link, but no devices; name the devices, too");
  if (parsed.contains("devices")) result.topology = topology_of(file, parsed, path);
  return result;
}

std::string placement_file_text(const PlacementGraph& graph) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const OperationGroup& group : graph.groups) {
    std::vector<std::string> inputs;
    for (const int input : group.inputs) inputs.push_back(graph.groups[static_cast<size_t>(input)].name);
    groups.push_back({{"name", group.name},
                      {"kind", group.kind},
                      {"forward_s", group.forward_s},
                      {"backward_s", group.backward_s},
                      {"update_s", group.update_s},
                      {"state_bytes", group.state_bytes},
                      {"kept_bytes", group.kept_bytes},
                      {"output_bytes", group.output_bytes},
                      {"inputs", inputs}});
  }
  return nlohmann::ordered_json{{"groups", groups}}.dump(1) + "\n";
}

std::string read_placement_text(const std::string& path) {
  FileText file = read_file_or_pipe(path, size_t{1} << 30);
  if (file.error != 0)
    throw ConfigError(path, fmt::format("cannot be read: {}; give the name of a JSON file", file.reason()));
  return std::move(file.text);
}

}  // namespace starling
