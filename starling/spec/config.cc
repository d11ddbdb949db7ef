#include "starling/spec/config.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/spec/named_runs.h"

namespace starling {
namespace {

std::string position(const std::string& name, const toml::source_position& at) {
  return fmt::format("{}:{}:{}", name, at.line, at.column);
}

// One thing found in a file: a value (or a table where none belongs) under its dotted key.
struct Found {
  std::string key;
  toml::source_position key_at;
  const toml::node* node;
};

bool is_table_name(const std::string& name) {
  const auto names = table_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr const char* kRuns = "runs";

// All keys of the file, or of one of its runs, in the order in which they are written, so that the first mistake is the one
// reported.
std::vector<Found> flatten(const toml::table& root, bool whole_file) {
  std::vector<Found> found;
  for (const auto& [name, node] : root) {
    const std::string table_name(name.str());
    if (whole_file && table_name == kRuns && node.is_table()) continue;  // apply_run reads them
    const toml::table* table = node.as_table();
    if (!table || !is_table_name(table_name)) {
      found.push_back({table_name, name.source().begin, &node});
      continue;
    }
    for (const auto& [leaf, value] : *table) {
      found.push_back({fmt::format("{}.{}", table_name, leaf.str()), leaf.source().begin, &value});
    }
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.key_at.line, a.key_at.column) < std::pair(b.key_at.line, b.key_at.column);
  });
  return found;
}

[[noreturn]] void refuse_unknown(const std::string& key, bool is_table, const std::string& where) {
  if (!is_table && is_table_name(key)) {
    throw ConfigError(where, fmt::format("{} is a table, not a value: write its keys under [{}]", key, key));
  }
  const std::string near = is_table ? nearest(key, table_names()) : near_key(key);
  const std::string shown = is_table ? fmt::format("table [{}]", key) : fmt::format("key {}", key);
  throw ConfigError(
      where, near.empty()
                 ? fmt::format("unknown {}: `starling config show` lists all keys", shown)
                 : fmt::format("unknown {}: did you mean {}?", shown, is_table ? "[" + near + "]" : near));
}

// What a TOML node that no field can hold is called.
std::string name_of(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list of mixed or nested values";
  return "a date or time";
}

template <class T>
std::optional<std::vector<T>> read_array(const toml::array& array) {
  std::vector<T> values;
  for (const toml::node& element : array) {
    const bool matches = std::is_same_v<T, double> ? element.is_number() : element.is_integer();
    if (!matches) return std::nullopt;
    values.push_back(*element.value<T>());
  }
  return values;
}

std::optional<Value> read_node(const toml::node& node) {
  if (const auto* text = node.as_string()) return Value(text->get());
  if (const auto* integer = node.as_integer()) return Value(integer->get());
  if (const auto* number = node.as_floating_point()) return Value(number->get());
  if (const auto* flag = node.as_boolean()) return Value(flag->get());
  if (const auto* array = node.as_array()) {
    if (auto integers = read_array<int64_t>(*array)) return Value(std::move(*integers));
    if (auto numbers = read_array<double>(*array)) return Value(std::move(*numbers));
  }
  return std::nullopt;
}

void store(Config& config, const SchemaEntry& entry, const toml::node& node, const std::string& where,
           Origin origin) {
  const std::optional<Value> value = read_node(node);
  if (!value) {
    throw ConfigError(where,
                      fmt::format("{} is {}, not {}", entry.key, describe(type_of(entry)), name_of(node)));
  }
  write(entry, config.spec, *value, where);
  config.origins[std::string(entry.key)] = std::move(origin);
}

// The text of --set or of a flag as a value for `entry`.
void store_text(Config& config, const SchemaEntry& entry, const std::string& text, const std::string& where,
                Origin origin) {
  const ValueType type = type_of(entry);
  const bool is_text = type == ValueType::kText || type == ValueType::kWord;
  if (is_text && text.find_first_of("\"'") != 0) {
    write(entry, config.spec, Value(text), where);
    config.origins[std::string(entry.key)] = std::move(origin);
    return;
  }
  std::optional<toml::table> table;
  try {
    table = toml::parse("v = " + text);
  } catch (const toml::parse_error&) {
  }
  if (!table || table->size() != 1) {
    throw ConfigError(where, fmt::format("{} is {}, not `{}`", entry.key, describe(type), text));
  }
  store(config, entry, *table->get("v"), where, std::move(origin));
}

toml::table parse_file(std::string_view text, const std::string& name) {
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw ConfigError(position(name, error.source().begin), fmt::format("not TOML: {}", error.description()));
  }
}

void apply_table(Config& config, const toml::table& root, const std::string& name, bool whole_file) {
  for (const Found& found : flatten(root, whole_file)) {
    const SchemaEntry* entry = find_entry(found.key);
    if (!entry) refuse_unknown(found.key, found.node->is_table(), position(name, found.key_at));
    const std::string where = position(name, found.node->source().begin);
    store(config, *entry, *found.node, where, {OriginKind::kFile, where});
  }
}

// The tables [runs.NAME], in the order of the file.
std::vector<std::pair<std::string, const toml::table*>> runs_of(const toml::table& root,
                                                                const std::string& name) {
  std::vector<std::pair<std::string, const toml::table*>> runs;
  const toml::table* all = root[kRuns].as_table();
  if (!all) return runs;
  for (const auto& [run, node] : *all) {
    if (!node.is_table())
      throw ConfigError(
          position(name, run.source().begin),
          fmt::format("runs.{} is no run: write its keys under [runs.{}]", run.str(), run.str()));
    runs.emplace_back(std::string(run.str()), node.as_table());
  }
  const auto begin = [](const auto& run) { return run.second->source().begin; };
  std::sort(runs.begin(), runs.end(), [&](const auto& a, const auto& b) {
    return std::pair(begin(a).line, begin(a).column) < std::pair(begin(b).line, begin(b).column);
  });
  return runs;
}

std::string text_of_file(const std::string& path) {
  const auto refuse = [&path](const std::string& reason) {
    throw ConfigError(path, fmt::format("the configuration cannot be read: {}", reason));
  };
  if (std::filesystem::is_directory(path)) refuse("it is a folder");
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(std::strerror(errno));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

std::string origin_text(const Origins& origins, std::string_view key) {
  const auto it = origins.find(key);
  return it == origins.end() ? "default" : it->second.where;
}

void apply_toml(Config& config, std::string_view text, const std::string& name) {
  const toml::table root = parse_file(text, name);
  apply_table(config, root, name, /*whole_file=*/true);
  for (const auto& [run, table] : runs_of(root, name)) {
    Config checked = config;  // a mistake in a run is one of the file
    apply_table(checked, *table, name, /*whole_file=*/false);
  }
}

void apply_toml_file(Config& config, const std::string& path) {
  apply_toml(config, text_of_file(path), path);
}

std::vector<std::string> run_names(const std::string& path) {
  const toml::table root = parse_file(text_of_file(path), path);
  std::vector<std::string> names;
  for (const auto& [run, table] : runs_of(root, path)) names.push_back(run);
  return names;
}

void apply_run(Config& config, const std::string& path, const std::string& run) {
  const toml::table root = parse_file(text_of_file(path), path);
  for (const auto& [name, table] : runs_of(root, path)) {
    if (name == run) return apply_table(config, *table, path, /*whole_file=*/false);
  }
  throw ConfigError(path, fmt::format("has no [runs.{}]", run));
}

void apply_set(Config& config, const std::string& assignment) {
  const std::string where = "--set " + assignment;
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw ConfigError(where, "expected key=value, for example --set optimizer.lr=0.1");
  }
  const auto trim = [](const std::string& text) {
    const size_t first = text.find_first_not_of(' ');
    return first == std::string::npos ? std::string()
                                      : text.substr(first, text.find_last_not_of(' ') - first + 1);
  };
  const std::string key = trim(assignment.substr(0, equals));
  const SchemaEntry* entry = find_entry(key);
  if (!entry) refuse_unknown(key, false, where);
  store_text(config, *entry, trim(assignment.substr(equals + 1)), where, {OriginKind::kSet, "--set"});
}

void apply_flag(Config& config, const SchemaEntry& entry, const std::string& flag, const std::string& text) {
  store_text(config, entry, text, flag + " " + text, {OriginKind::kFlag, flag});
}

}  // namespace starling
