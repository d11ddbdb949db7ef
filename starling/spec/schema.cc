#include "starling/spec/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/base/utf8.h"
#include "starling/spec/extensions.h"

namespace starling {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

[[noreturn]] void refuse(const SchemaEntry& entry, const Value& value, const std::string& where) {
  throw ConfigError(where,
                    fmt::format("{} is {}, not {}", entry.key, describe(type_of(entry)), to_toml(value)));
}

bool inside(const Range& range, double x) {
  if (!std::isfinite(x)) return false;
  return (range.min_open ? x > range.min : x >= range.min) &&
         (range.max_open ? x < range.max : x <= range.max);
}

void check_range(const SchemaEntry& entry, double x, const std::string& text, const std::string& where) {
  if (inside(entry.range, x)) return;
  const std::string allowed = describe_allowed(entry);
  throw ConfigError(where, fmt::format("{} = {} is out of range: it must be {}", entry.key, text,
                                       allowed.empty() || !std::isfinite(x) ? "finite" : allowed));
}

// Returns true if a program can add words to those of the entry (spec/extensions.h).
bool takes_added_words(const SchemaEntry& entry) {
  return entry.key == "exchange.name" || entry.key == "comm.algorithm";
}

void check_word(const SchemaEntry& entry, const std::string& word, const std::string& where,
                const Extensions* added) {
  if (entry.allowed.empty() || find_word(entry.allowed, word)) return;
  const auto words = allowed_words(entry, added);
  if (std::find(words.begin(), words.end(), word) != words.end()) return;
  const std::string near = nearest(word, words);
  throw ConfigError(
      where,
      fmt::format("{} = \"{}\" is unknown: {}use {}{}", entry.key, word,
                  near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near),
                  describe_allowed(entry, added),
                  takes_added_words(entry) ? ", or the program that adds it (starling::Extensions)" : ""));
}

template <class T>
void check_each(const SchemaEntry& entry, const std::vector<T>& values, const std::string& where) {
  const std::string shown = to_toml(Value(values));
  for (const T& value : values) check_range(entry, static_cast<double>(value), shown, where);
}

double as_number(const SchemaEntry& entry, const Value& value, const std::string& where) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  refuse(entry, value, where);
}

std::vector<double> as_numbers(const SchemaEntry& entry, const Value& value, const std::string& where) {
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value))
    return {integers->begin(), integers->end()};
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) return *numbers;
  refuse(entry, value, where);
}

template <class T>
const T& as(const SchemaEntry& entry, const Value& value, const std::string& where) {
  if (const T* typed = std::get_if<T>(&value)) return *typed;
  refuse(entry, value, where);
}

// Writer checks a value and stores it through one kind of member.
struct Writer {
  const SchemaEntry& entry;
  RunSpec& spec;
  const Value& value;
  const std::string& where;

  void operator()(const Member<bool>& member) const { member.write(spec) = as<bool>(entry, value, where); }
  template <class T>
    requires std::is_integral_v<T>
  void operator()(const Member<T>& member) const {
    const int64_t integer = as<int64_t>(entry, value, where);
    check_range(entry, static_cast<double>(integer), to_toml(value), where);
    member.write(spec) = static_cast<T>(integer);
  }
  void operator()(const Member<double>& member) const {
    const double number = as_number(entry, value, where);
    check_range(entry, number, to_toml(value), where);
    member.write(spec) = number;
  }
  void operator()(const Member<std::string>& member) const {
    const std::string& text = as<std::string>(entry, value, where);
    if (!is_utf8(text))  // checkpoints and events hold the configuration as JSON
      throw ConfigError(
          where,
          fmt::format("the value of {} is not UTF-8; give a value, or a file name, in UTF-8", entry.key));
    check_word(entry, text, where, spec.extensions.get());
    member.write(spec) = text;
  }
  void operator()(const Member<std::vector<int64_t>>& member) const {
    // An empty list in a file or in JSON has no element that determines its type.
    const auto* none = std::get_if<std::vector<double>>(&value);
    const auto& integers =
        none && none->empty() ? std::vector<int64_t>{} : as<std::vector<int64_t>>(entry, value, where);
    check_each(entry, integers, where);
    member.write(spec) = integers;
  }
  void operator()(const Member<std::vector<double>>& member) const {
    auto numbers = as_numbers(entry, value, where);
    check_each(entry, numbers, where);
    member.write(spec) = std::move(numbers);
  }
  void operator()(const EnumMember& member) const {
    const std::string& word = as<std::string>(entry, value, where);
    check_word(entry, word, where, nullptr);
    member.write(spec, *find_word(entry.allowed, word));
  }
};

struct Typer {
  std::string_view allowed;
  ValueType operator()(const Member<bool>&) const { return ValueType::kBool; }
  ValueType operator()(const Member<int64_t>&) const { return ValueType::kInteger; }
  ValueType operator()(const Member<uint64_t>&) const { return ValueType::kInteger; }
  ValueType operator()(const Member<double>&) const { return ValueType::kNumber; }
  ValueType operator()(const Member<std::string>&) const {
    return allowed.empty() ? ValueType::kText : ValueType::kWord;
  }
  ValueType operator()(const Member<std::vector<int64_t>>&) const { return ValueType::kIntegers; }
  ValueType operator()(const Member<std::vector<double>>&) const { return ValueType::kNumbers; }
  ValueType operator()(const EnumMember&) const { return ValueType::kWord; }
};

struct Reader {
  const SchemaEntry& entry;
  const RunSpec& spec;
  Value operator()(const EnumMember& member) const {
    return split_words(entry.allowed).at(member.read(spec));
  }
  Value operator()(const Member<uint64_t>& member) const { return static_cast<int64_t>(member.read(spec)); }
  template <class T>
  Value operator()(const Member<T>& member) const {
    return member.read(spec);
  }
};

}  // namespace

const SchemaEntry* find_entry(std::string_view key) {
  for (const SchemaEntry& entry : schema()) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

bool program_brings(const SchemaEntry& entry, const Extensions* added) {
  // The keys of a model or of data that apply to a user's program, too.
  static constexpr std::string_view kOfPrograms[] = {"model.batch_norm", "model.conv",     "model.init",
                                                     "data.order",       "data.workers",   "data.prefetch",
                                                     "data.stall_s",     "data.partition", "data.share"};
  const bool of_model = entry.section == Section::kModel, of_data = entry.section == Section::kData;
  const bool adds_data = added != nullptr && added->takes_data();
  if (adds_data && (of_data || entry.key == "model.tokens")) return false;
  return (of_model || of_data) &&
         std::find(std::begin(kOfPrograms), std::end(kOfPrograms), entry.key) == std::end(kOfPrograms);
}

const SchemaEntry* find_flag(std::string_view name) {
  for (const SchemaEntry& entry : schema()) {
    for (std::string_view flags = entry.flags; !flags.empty();) {
      const size_t comma = std::min(flags.find(','), flags.size());
      if (flags.substr(0, comma) == name) return &entry;
      flags.remove_prefix(std::min(comma + 1, flags.size()));
    }
  }
  return nullptr;
}

namespace {

// Returns the first key of a table that has `part` as one of its words, or an empty string. The words of
// "global_batch" are "global" and "batch".
std::string key_with_part(std::string_view table, std::string_view part) {
  for (const SchemaEntry& entry : schema()) {
    const std::string words = fmt::format("_{}_", leaf_of(entry));
    if (table_of(entry) == table && words.find(fmt::format("_{}_", part)) != std::string::npos)
      return std::string(entry.key);
  }
  return "";
}

}  // namespace

std::string near_key(std::string_view key) {
  const size_t dot = key.find('.');
  const std::string_view table = key.substr(0, dot);
  const std::string_view leaf = dot == std::string_view::npos ? key : key.substr(dot + 1);
  std::vector<std::string> all, same_leaf, same_table;
  for (const SchemaEntry& entry : schema()) {
    all.emplace_back(entry.key);
    if (leaf_of(entry) == leaf) same_leaf.emplace_back(entry.key);
    if (table_of(entry) == table) same_table.emplace_back(leaf_of(entry));
  }
  if (same_leaf.size() == 1) return same_leaf.front();  // the right name with a wrong table, or without one
  const std::string in_table = nearest(leaf, same_table);
  if (!in_table.empty()) return fmt::format("{}.{}", table, in_table);
  const std::string in_all = nearest(key, all);
  return in_all.empty() ? key_with_part(table, leaf) : in_all;
}

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const SchemaEntry& entry : schema()) {
    if (names.empty() || names.back() != table_of(entry)) names.emplace_back(table_of(entry));
  }
  return names;
}

std::string_view table_of(const SchemaEntry& entry) {
  return entry.key.substr(0, entry.key.find('.'));
}
std::string_view leaf_of(const SchemaEntry& entry) {
  return entry.key.substr(entry.key.find('.') + 1);
}

ValueType type_of(const SchemaEntry& entry) {
  return std::visit(Typer{entry.allowed}, entry.member);
}

Value read(const SchemaEntry& entry, const RunSpec& spec) {
  return std::visit(Reader{entry, spec}, entry.member);
}

Value default_of(const SchemaEntry& entry) {
  return read(entry, RunSpec{});
}

std::vector<std::string> allowed_words(const SchemaEntry& entry, const Extensions* added) {
  std::vector<std::string> words = split_words(entry.allowed);
  if (added == nullptr || words.empty()) return words;
  if (entry.key == "exchange.name") {
    for (const auto& row : added->exchanges()) words.emplace_back(row->traits.name);
  } else if (entry.key == "comm.algorithm") {
    for (const auto& row : added->all_reduces()) words.push_back(row->name);
  }
  return words;
}

std::string describe_allowed(const SchemaEntry& entry, const Extensions* added) {
  if (!entry.allowed.empty()) return fmt::format("one of {}", fmt::join(allowed_words(entry, added), ", "));
  std::vector<std::string> parts;
  const Range& range = entry.range;
  if (range.min > -kInfinity)
    parts.push_back(fmt::format("{} {}", range.min_open ? "above" : "at least", range.min));
  if (range.max < kInfinity)
    parts.push_back(fmt::format("{} {}", range.max_open ? "below" : "at most", range.max));
  return fmt::format("{}", fmt::join(parts, " and "));
}

void write(const SchemaEntry& entry, RunSpec& spec, const Value& value, const std::string& where) {
  std::visit(Writer{entry, spec, value, where}, entry.member);
}

}  // namespace starling
