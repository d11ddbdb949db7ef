// The schema: one entry for each field of RunSpec. The TOML file, --set, the flags, the checks and the
// documentation are all read from this table, so that a new field is one line in run_spec.h and one entry in
// schema_table.cc.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "starling/spec/enum_words.h"
#include "starling/spec/run_spec.h"
#include "starling/spec/value.h"

namespace starling {

// How an entry reaches its field.
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

// The interval that a number, or each number of a list, lies in. Numbers are always finite.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;  // greater than min
  bool max_open = false;  // less than max
};

struct SchemaEntry {
  std::string_view key;  // "train.ranks"
  AnyMember member = Member<bool>{};
  std::string_view doc = "";      // one line
  std::string_view unit = "";     // "s", "MB", "samples", …
  std::string_view allowed = "";  // words between spaces; empty = any
  Range range = {};
  std::string_view flags = "";        // "-n,--ranks"; empty = only by file and --set
  std::string_view placeholder = "";  // what the flag takes, in help: "FILE.safetensors"
  bool shapes_training = true;        // false: may differ when a run is resumed
};

// Every entry, in the order of RunSpec. The keys of a table are adjacent.
std::span<const SchemaEntry> schema();

// The entry of a dotted key, or null.
const SchemaEntry* find_entry(std::string_view key);

// The key that was probably meant by an unknown one; empty if there is none like it.
std::string near_key(std::string_view key);

// "model", "data", …: the tables, in order.
std::vector<std::string> table_names();

// "train" and "ranks" of "train.ranks".
std::string_view table_of(const SchemaEntry& entry);
std::string_view leaf_of(const SchemaEntry& entry);

ValueType type_of(const SchemaEntry& entry);
Value read(const SchemaEntry& entry, const RunSpec& spec);
Value default_of(const SchemaEntry& entry);

// What is allowed, for people: "at least 1", "one of op, batch"; empty where anything is.
std::string describe_allowed(const SchemaEntry& entry);

// Stores a value after checking its type (an integer is also a number), words and range. ConfigError at
// `where` names the key, what is wrong and what is allowed.
void write(const SchemaEntry& entry, RunSpec& spec, const Value& value, const std::string& where);

}  // namespace starling
