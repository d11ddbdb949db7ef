// Value: what one key of the configuration holds, whatever its type. Enumerators are their words.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace starling {

using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

enum class ValueType { kBool, kInteger, kNumber, kText, kWord, kIntegers, kNumbers };

// For messages and documentation, with its article: "an integer", "one of a list of words", …
std::string describe(ValueType type);

// As TOML writes it: strings quoted, numbers so that they read back exactly, a number always with a point or
// exponent.
std::string to_toml(const Value& value);

}  // namespace starling
