// The schema has one entry for each field of RunSpec. TOML files, --set, flags, checks, help texts, shell
// completion and the documentation are all read from this table. A new field needs one line in run_spec.h and
// one entry in schema_table.cc.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "starling/spec/enum_words.h"
#include "starling/spec/run_spec.h"
#include "starling/spec/section.h"
#include "starling/spec/value.h"

namespace starling {

// Member reads and writes the field that belongs to an entry.
template <class T>
struct Member {
  const T& (*read)(const RunSpec&);
  T& (*write)(RunSpec&);
};
struct EnumMember {
  size_t (*read)(const RunSpec&);  // the index of the enumerator
  void (*write)(RunSpec&, size_t);
};
using AnyMember =
    std::variant<Member<bool>, Member<int64_t>, Member<uint64_t>, Member<double>, Member<std::string>,
                 Member<std::vector<int64_t>>, Member<std::vector<double>>, EnumMember>;

// The interval that a number, or each number of a list, must lie in. Numbers are always finite.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;  // greater than min
  bool max_open = false;  // less than max
};

struct SchemaEntry {
  std::string_view key;  // "train.ranks"
  AnyMember member = Member<bool>{};
  Section section = Section::kTraining;
  std::string_view doc =
      "";  // complete sentences, shown in help texts and in docs/reference/configuration.md
  std::string_view unit = "";         // "s", "MB", "samples", …
  std::string_view allowed = "";      // the allowed words, separated by spaces; empty allows any value
  std::string_view suggestions = "";  // words that shells complete where other values are allowed, too
  Range range = {};
  std::string_view flags = "";        // "-n,--ranks"; empty: the key is set by files and --set only
  std::string_view placeholder = "";  // the flag's argument in help texts: "FILE.safetensors"
  bool shapes_training = true;        // false: the value may change when a run is resumed
};

// Returns every entry. The tables have the order of RunSpec, and the keys of a table are adjacent.
std::span<const SchemaEntry> schema();

// Returns the entry of a dotted key, or null.
const SchemaEntry* find_entry(std::string_view key);

// Returns the entry that has the flag `name` ("--ranks" or "-n"), or null.
const SchemaEntry* find_flag(std::string_view name);

// Returns true if a user's program determines what the key says, because it brings its model and its data.
// `added` is what the program adds, or null. A program that adds a kind of data takes the keys of data.
bool program_brings(const SchemaEntry& entry, const Extensions* added);

// Returns the known key that resembles an unknown one, or an empty string.
std::string near_key(std::string_view key);

// Returns the names of the tables in order: "model", "data", …
std::vector<std::string> table_names();

// Return "train" and "ranks" for the key "train.ranks".
std::string_view table_of(const SchemaEntry& entry);
std::string_view leaf_of(const SchemaEntry& entry);

// Return the type of an entry, its value in `spec`, and its default value.
ValueType type_of(const SchemaEntry& entry);
Value read(const SchemaEntry& entry, const RunSpec& spec);
Value default_of(const SchemaEntry& entry);

// Returns the allowed words of an entry, with those that the program adds. `added` may be null. Empty if
// every value is allowed.
std::vector<std::string> allowed_words(const SchemaEntry& entry, const Extensions* added);

// Describes the allowed values: "at least 1", "one of op, batch". Empty if every value is allowed.
std::string describe_allowed(const SchemaEntry& entry, const Extensions* added = nullptr);

// Checks the type, the words and the range of a value and stores it. An integer is accepted where a number is
// expected. Throws ConfigError at `where` with the key, the problem and the allowed values.
void write(const SchemaEntry& entry, RunSpec& spec, const Value& value, const std::string& where);

}  // namespace starling
