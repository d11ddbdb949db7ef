// Value holds the value of a configuration key of any type. An enumerator is represented by its word.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace starling {

using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

enum class ValueType { kBool, kInteger, kNumber, kText, kWord, kIntegers, kNumbers };

// Describes a type with its article, for messages and documentation: "an integer", "a list of numbers", …
std::string describe(ValueType type);

// Returns the value in TOML. Strings are quoted. Floating-point numbers have a point or an exponent, and
// reading them gives the same value.
std::string to_toml(const Value& value);

}  // namespace starling
