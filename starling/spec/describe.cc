#include "starling/spec/describe.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/spec/schema.h"
#include "starling/spec/strategy_table.h"

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

// Returns the type of an entry in JSON Schema.
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

// Returns "-n, --ranks N", or an empty string if the entry has no flag.
std::string flag_text(const SchemaEntry& entry) {
  if (entry.flags.empty()) return "";
  std::string text;
  for (const char c : entry.flags) text += c == ',' ? std::string(", ") : std::string(1, c);
  return entry.placeholder.empty() ? text : fmt::format("{} {}", text, entry.placeholder);
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
       entry.shapes_training ? "must not change when a run is resumed" : "may change when a run is resumed");
  return out;
}

const SchemaEntry& require_entry(std::string_view key) {
  if (const SchemaEntry* entry = find_entry(key)) return *entry;
  const std::string near = near_key(key);
  throw ConfigError(std::string(key), near.empty() ? "no such key: `starling config show` lists all keys"
                                                   : fmt::format("no such key: did you mean {}?", near));
}

// Escapes the text of a cell in a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

// Returns a link from a page in docs/explanation to `page`, which is relative to docs/. `text` is code.
std::string explanation_link(std::string_view text, std::string_view page) {
  if (page.empty()) return fmt::format("`{}`", cell(text));
  constexpr std::string_view kHere = "explanation/";
  const std::string target =
      page.starts_with(kHere) ? std::string(page.substr(kHere.size())) : fmt::format("../{}", page);
  return fmt::format("[`{}`]({})", cell(text), target);
}

std::string table_title(std::string_view table) {
  return fmt::format("## [{}]\n\n| Key | Type | Default | Flag | Meaning |\n|---|---|---|---|---|\n", table);
}

// Returns what the loss of a rank does to a run of the exchange, with train.on_failure = "continue".
std::string_view loss_text(const ExchangeTraits& exchange) {
  if (!exchange.survives_loss) return "ends the run";
  return exchange.servers ? "the other workers can continue; a lost server ends the run"
                          : "the other ranks can continue";
}

// Returns the table of what each exchange assumes and guarantees, with the heading of its section.
std::string consistency_markdown() {
  std::string out =
      "## What each exchange assumes and guarantees\n\n"
      "*Synchronous*: the gradients of a step are those of equal parameters. *Bounded*: a number of steps\n"
      "limits what a rank misses of another rank. *Asynchronous*: nothing limits it. An assumption is what "
      "a\n"
      "proof or experience rests on. A guarantee holds in every run. \"Update of one process\" holds "
      "without\n"
      "a codec, backup workers and threads without locks. `--on-failure` says whether ranks continue.\n\n"
      "| `--exchange` | Kind | Waiting | It assumes | It guarantees | Update of one process | A lost rank |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const ExchangeTraits& exchange : exchange_table()) {
    for (const ConsistencyRow& row : consistency_rows(exchange))
      out += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", explanation_link(row.name, exchange.page),
                         row.kind, row.waits, cell(row.assumes), cell(row.guarantees),
                         row.one_process ? "yes" : "no", loss_text(exchange));
  }
  return out;
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
      "<!-- `starling config schema --markdown` writes this page and a test compares the two.\n"
      "     Edit starling/spec/schema_table.cc, not this file. -->\n\n"
      "Every value of a run has one dotted key. Starling reads the value from these sources. A later source\n"
      "overrides the earlier ones.\n\n"
      "1. The default in the tables below.\n"
      "2. The recipe of the model, the optimizer, the exchange or the codec.\n"
      "3. The settings that a program of yours gives to `starling::init`. If they contain `train.ranks`,\n"
      "   that many ranks start, also with `--hosts`.\n"
      "4. The TOML files that `-c FILE` names, in the order of the command line.\n"
      "5. `--set key=value`. The value is written as in TOML, but a text needs no quotes:\n"
      "   `--set optimizer.name=adam`.\n"
      "6. The flag of the key, if the key has one.\n\n"
      "`starling config show` prints every value of a run and where the value came from. Its output is\n"
      "itself a configuration file. `starling config explain KEY` describes one key. `starling config\n"
      "schema` prints a JSON Schema (draft 2020-12) that an editor can use to check a file. A relative path\n"
      "counts from the folder in which you start the program.\n";
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

std::string strategies_markdown() {
  std::string exchanges =
      "| `--exchange` | A step | Bytes that a rank sends | Statistics |\n|---|---|---|---|\n";
  std::string flags = "| Flag | Meaning | Use it when | Statistics |\n|---|---|---|---|\n";
  for (const StrategyRow& row : strategy_rows()) {
    const std::string name = explanation_link(row.name, row.page);
    if (row.exchange != nullptr) {
      exchanges += fmt::format("| {} | {} | {} | {} |\n", name, cell(row.exchange->step),
                               cell(row.exchange->bytes), cell(row.statistics));
    } else {
      flags += fmt::format("| {} | {} | {} | {} |\n", name, cell(row.summary), cell(row.use_when),
                           cell(row.statistics));
    }
  }
  return exchanges +
         "\nThese flags change how a replica is stored, cut or sent. They combine with exchanges as each "
         "page "
         "says.\n\n" +
         flags + "\n" + consistency_markdown();
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
