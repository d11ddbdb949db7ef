// An option of one command that takes a number.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <type_traits>

namespace starling {

// "--name UNIT", for a number from `smallest` to `largest`. Its help ends with the default in brackets, which is what
// `number` holds now; one that lies outside of the range stands for "not given" and is not shown.
template <typename T>
CLI::Option& add_number_option(CLI::App& command, const std::string& name, T& number, const std::string& help,
                               const std::string& unit, std::type_identity_t<T> smallest,
                               std::type_identity_t<T> largest) {
  const bool given = smallest <= number && number <= largest;
  return *command.add_option(name, number, given ? fmt::format("{} [{}]", help, number) : help)
              ->check(CLI::Range(smallest, largest))
              ->type_name(unit);
}

}  // namespace starling
