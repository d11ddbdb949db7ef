#include "starling/spec/describe.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/spec/schema.h"

namespace starling {
namespace {

using Json = nlohmann::ordered_json;

Json default_json(const SchemaEntry& entry) {
  return std::visit([](const auto& typed) { return Json(typed); }, default_of(entry));
}

void add_range(Json& json, const Range& range, bool integer) {
  const auto number = [integer](double x) { return integer ? Json(static_cast<int64_t>(x)) : Json(x); };
  if (std::isfinite(range.min)) json[range.min_open ? "exclusiveMinimum" : "minimum"] = number(range.min);
  if (std::isfinite(range.max)) json[range.max_open ? "exclusiveMaximum" : "maximum"] = number(range.max);
}

// The type of an entry in the words of JSON Schema.
Json type_json(const SchemaEntry& entry) {
  const ValueType type = type_of(entry);
  Json json = Json::object();
  switch (type) {
    case ValueType::kBool:
      json["type"] = "boolean";
      break;
    case ValueType::kText:
      json["type"] = "string";
      break;
    case ValueType::kWord:
      json["type"] = "string";
      json["enum"] = split_words(entry.allowed);
      break;
    case ValueType::kInteger:
    case ValueType::kNumber:
      json["type"] = type == ValueType::kInteger ? "integer" : "number";
      add_range(json, entry.range, type == ValueType::kInteger);
      break;
    case ValueType::kIntegers:
    case ValueType::kNumbers: {
      Json element = {{"type", type == ValueType::kIntegers ? "integer" : "number"}};
      add_range(element, entry.range, type == ValueType::kIntegers);
      json["type"] = "array";
      json["items"] = element;
      break;
    }
  }
  return json;
}

// "-n, --ranks N"; empty without a flag.
std::string flag_text(const SchemaEntry& entry) {
  if (entry.flags.empty()) return "";
  std::string text;
  for (const char c : entry.flags) text += c == ',' ? std::string(", ") : std::string(1, c);
  return fmt::format("{} {}", text, entry.placeholder);
}

std::string explain_entry(const SchemaEntry& entry) {
  std::string out = fmt::format("{}\n  {}\n\n", entry.key, entry.doc);
  const auto line = [&out](std::string_view name, const std::string& text) {
    if (!text.empty()) out += fmt::format("  {:<9}{}\n", name, text);
  };
  line("type", describe(type_of(entry)));
  line("default", to_toml(default_of(entry)));
  line("allowed", describe_allowed(entry));
  line("unit", std::string(entry.unit));
  line("flag", flag_text(entry));
  line("set by", fmt::format("--set {}={}", entry.key, to_toml(default_of(entry))));
  line("resume",
       entry.shapes_training ? "must be as in the run that is resumed" : "may differ from the run resumed");
  return out;
}

const SchemaEntry& require_entry(std::string_view key) {
  if (const SchemaEntry* entry = find_entry(key)) return *entry;
  const std::string near = near_key(key);
  throw ConfigError(std::string(key), near.empty() ? "no such key: `starling config show` lists all keys"
                                                   : fmt::format("no such key: did you mean {}?", near));
}

// Text inside a cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string table_title(std::string_view table) {
  return fmt::format("## [{}]\n\n| Key | Type | Default | Flag | Meaning |\n|---|---|---|---|---|\n", table);
}

}  // namespace

std::string json_schema() {
  Json root;
  root["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  root["title"] = "Configuration of a Starling run";
  root["type"] = "object";
  root["additionalProperties"] = false;
  root["patternProperties"]["^runs$"] = {// [runs.NAME] of `starling compare`
                                         {"type", "object"},
                                         {"additionalProperties", {{"type", "object"}}}};
  for (const SchemaEntry& entry : schema()) {
    Json property = type_json(entry);
    property["default"] = default_json(entry);
    property["description"] =
        entry.unit.empty() ? std::string(entry.doc) : fmt::format("{} Unit: {}.", entry.doc, entry.unit);
    Json& table = root["properties"][std::string(table_of(entry))];
    table["type"] = "object";
    table["additionalProperties"] = false;
    table["properties"][std::string(leaf_of(entry))] = property;
  }
  return root.dump(2) + "\n";
}

std::string schema_markdown() {
  std::string out =
      "# Configuration\n\n"
      "<!-- Written by `starling config schema --markdown`; a test compares the two. Edit "
      "starling/spec/schema_table.cc. "
      "-->\n\n"
      "Every value of a run has one dotted key. It is read, each source overriding those before it, from\n\n"
      "1. the default below,\n"
      "2. the files of `-c FILE`, in TOML, in the order given,\n"
      "3. `--set key=value`, written as in TOML; texts and words need no quotes: `--set "
      "optimizer.name=adam`,\n"
      "4. the flag, where there is one.\n\n"
      "`starling config show` prints every value of a run and where it came from; what it prints is itself "
      "a\n"
      "configuration file. `starling config explain KEY` describes one key, and `starling config schema` "
      "prints a JSON\n"
      "Schema (draft 2020-12) that editors can check files by. Paths are relative to the folder that the "
      "program is "
      "started in.\n";
  for (const std::string& table : table_names()) {
    out += "\n" + table_title(table);
    for (const SchemaEntry& entry : schema()) {
      if (table_of(entry) != table) continue;
      const std::string allowed = describe_allowed(entry);
      std::string type = allowed.empty() ? describe(type_of(entry))
                         : type_of(entry) == ValueType::kWord
                             ? allowed
                             : fmt::format("{}, {}", describe(type_of(entry)), allowed);
      const std::string flag = flag_text(entry);
      out += fmt::format("| `{}` | {} | `{}` | {} | {}{} |\n", entry.key, cell(type),
                         to_toml(default_of(entry)), flag.empty() ? "" : "`" + cell(flag) + "`",
                         cell(entry.doc), entry.unit.empty() ? "" : fmt::format(" Unit: {}.", entry.unit));
    }
  }
  return out;
}

std::string explain(std::string_view key) {
  std::string lines;
  for (const SchemaEntry& entry : schema()) {
    if (table_of(entry) == key) lines += fmt::format("{:<27} {}\n", entry.key, entry.doc);
  }
  return lines.empty() ? explain_entry(require_entry(key)) : lines;
}

std::string explain_json(std::string_view key) {
  const SchemaEntry& entry = require_entry(key);
  Json line = {{"event", "explain"}, {"key", entry.key}, {"doc", entry.doc}};
  line.update(type_json(entry));
  line["default"] = default_json(entry);
  if (!entry.unit.empty()) line["unit"] = entry.unit;
  if (!entry.flags.empty()) line["flag"] = flag_text(entry);
  line["shapes_training"] = entry.shapes_training;
  return line.dump();
}

}  // namespace starling
