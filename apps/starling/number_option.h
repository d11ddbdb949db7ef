// Adds an option that takes a number to a command.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>
#include <type_traits>

namespace starling {

// Returns what is wrong with a text that stands for NaN, or "". CLI::Range accepts NaN, because no comparison
// with it is true.
template <typename T>
std::string refuse_nan(const std::string& text) {
  if constexpr (std::is_floating_point_v<T>) {
    T value = 0;
    if (CLI::detail::lexical_cast(text, value) && std::isnan(value)) return text + " is not a number";
  }
  return "";
}

// Adds "--name UNIT" for a number from `smallest` to `largest`, which may be infinite. The present value of
// `number` is the default and ends the help text in brackets. A default outside of the range means "not
// given" and is not shown.
template <typename T>
CLI::Option& add_number_option(CLI::App& command, const std::string& name, T& number, const std::string& help,
                               const std::string& unit, std::type_identity_t<T> smallest,
                               std::type_identity_t<T> largest) {
  const bool given = smallest <= number && number <= largest;
  return *command.add_option(name, number, given ? fmt::format("{} [{}]", help, number) : help)
              ->check(CLI::Range(smallest, largest).description(""))
              ->check(refuse_nan<T>)
              ->type_name(unit);
}

}  // namespace starling
