// Integers of JSON that comes from outside. nlohmann's get<int>() converts every number, and a number that
// does not fit is undefined behavior.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace starling {

// Returns the integer that a JSON value holds. Errors: Json::out_of_range, a Json::exception, if the value is
// no integer or does not fit Int. Json: a type of nlohmann's library.
template <typename Int, typename Json>
Int integer_of(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.template get<uint64_t>();
    if (std::in_range<Int>(number)) return static_cast<Int>(number);
  } else if (value.is_number_integer()) {
    const auto number = value.template get<int64_t>();
    if (std::in_range<Int>(number)) return static_cast<Int>(number);
  }
  throw Json::out_of_range::create(406, std::string("a ") + value.type_name() + " is no integer in range",
                                   &value);
}

// Returns the integers of a JSON array. Errors: as integer_of().
template <typename Int, typename Json>
std::vector<Int> integers_of(const Json& values) {
  std::vector<Int> out;
  if (!values.is_array()) out.push_back(integer_of<Int>(Json()));  // throws
  out.reserve(values.size());
  for (const Json& value : values) out.push_back(integer_of<Int>(value));
  return out;
}

}  // namespace starling
