#include "starling/spec/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"

namespace starling {
namespace {

nlohmann::json value_to_json(const Value& value) {
  return std::visit([](const auto& typed) { return nlohmann::json(typed); }, value);
}

// Returns the value for a message. Writing a value as text recurses once per level, so one with levels below
// its own is named by its type.
std::string text_of(const nlohmann::json& json) {
  const bool flat = std::none_of(json.begin(), json.end(), [](const auto& e) { return e.is_structured(); });
  return flat ? json.dump() : fmt::format("a nested {}", json.type_name());
}

Value value_from_json(const SchemaEntry& entry, const nlohmann::json& json, const std::string& where) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  const auto all = [&](auto predicate) {
    return json.is_array() && std::all_of(json.begin(), json.end(), predicate);
  };
  if (all([](const nlohmann::json& e) { return e.is_number_integer(); }))
    return json.get<std::vector<int64_t>>();
  if (all([](const nlohmann::json& e) { return e.is_number(); })) return json.get<std::vector<double>>();
  throw ConfigError(where,
                    fmt::format("{} is {}, not {}", entry.key, describe(type_of(entry)), text_of(json)));
}

}  // namespace

std::string config_to_toml(const Config& config) {
  std::string out;
  for (const std::string& table : table_names()) {
    std::vector<std::pair<std::string, std::string>> lines;  // the assignment and its origin
    size_t leaf_width = 0, width = 0;
    for (const SchemaEntry& entry : schema()) {
      if (table_of(entry) == table) leaf_width = std::max(leaf_width, leaf_of(entry).size());
    }
    for (const SchemaEntry& entry : schema()) {
      if (table_of(entry) != table) continue;
      lines.emplace_back(
          fmt::format("{:<{}} = {}", leaf_of(entry), leaf_width, to_toml(read(entry, config.spec))),
          origin_text(config.origins, entry.key));
      width = std::max(width, lines.back().first.size());
    }
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", table);
    for (const auto& [assignment, origin] : lines)
      out += fmt::format("{:<{}}  # {}\n", assignment, width, origin);
  }
  return out;
}

std::string spec_to_toml(const RunSpec& spec) {
  const bool of_program = spec.model.name == kUserModel;
  std::string out = of_program
                        ? "# The configuration of this run. The program reads it again with -c FILE.\n"
                        : "# The configuration of this run. `starling train -c FILE` reads it again.\n";
  std::string_view table;
  for (const SchemaEntry& entry : schema()) {
    if (of_program && program_brings(entry, spec.extensions.get())) continue;
    if (table_of(entry) != table) {
      table = table_of(entry);
      out += fmt::format("\n[{}]\n", table);
    }
    out += fmt::format("{} = {}\n", leaf_of(entry), to_toml(read(entry, spec)));
  }
  return out;
}

nlohmann::json spec_to_json(const RunSpec& spec) {
  nlohmann::json json = nlohmann::json::object();
  for (const SchemaEntry& entry : schema()) {
    json[std::string(table_of(entry))][std::string(leaf_of(entry))] = value_to_json(read(entry, spec));
  }
  return json;
}

namespace {

// Returns `value`, or its present name if an earlier version wrote the value under another name.
const nlohmann::json& renamed(const std::string& key, const nlohmann::json& value) {
  static const nlohmann::json kSharded = "sharded";
  const bool shared = key == "optimizer.share" || key == "exchange.central";
  return shared && value == "divided" ? kSharded : value;
}

}  // namespace

namespace {

bool is_of_own_program(const nlohmann::json& json) {
  const auto model = json.find("model");
  if (model == json.end() || !model->is_object()) return false;
  const auto name = model->find("name");
  return name != model->end() && *name == kUserModel;
}

}  // namespace

RunSpec spec_from_json(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object()) throw ConfigError(where, "the configuration is not a JSON object");
  RunSpec spec;
  // A user's own program may have added the words. The program that resumes the run checks its own.
  const bool own_program = is_of_own_program(json);
  for (const auto& [table, leaves] : json.items()) {
    if (!leaves.is_object()) throw ConfigError(where, fmt::format("{} is not a JSON object", table));
    for (const auto& [leaf, value] : leaves.items()) {
      const std::string key = fmt::format("{}.{}", table, leaf);
      const SchemaEntry* entry = find_entry(key);
      if (!entry)
        throw ConfigError(
            where, fmt::format("unknown key {}. Another version of Starling may have written it", key));
      if (key == "model.name" && value == kUserModel) {  // the checkpoint of a user's own program
        spec.model.name = kUserModel;
        continue;
      }
      if (own_program && value.is_string() && (key == "exchange.name" || key == "comm.algorithm")) {
        (key == "exchange.name" ? spec.exchange.name : spec.comm.algorithm) = value.get<std::string>();
        continue;
      }
      write(*entry, spec, value_from_json(*entry, renamed(key, value), where), where);
    }
  }
  return spec;
}

std::string config_to_json_line(const Config& config) {
  nlohmann::ordered_json line;
  line["event"] = "config";
  line["values"] = spec_to_json(config.spec);
  for (const SchemaEntry& entry : schema()) {
    line["origins"][std::string(entry.key)] = origin_text(config.origins, entry.key);
  }
  return line.dump();
}

std::vector<Difference> differences(const RunSpec& a, const RunSpec& b) {
  std::vector<Difference> found;
  for (const SchemaEntry& entry : schema()) {
    // The threads of a rank divide its batch into mini-batches if they train without locks.
    const bool hogwild = a.train.threads_mode == ThreadsMode::kHogwild && entry.key == "train.threads";
    if (!entry.shapes_training && !hogwild) continue;
    const Value in_a = read(entry, a), in_b = read(entry, b);
    if (in_a != in_b) found.push_back({std::string(entry.key), to_toml(in_a), to_toml(in_b)});
  }
  return found;
}

}  // namespace starling
