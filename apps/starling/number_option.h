// Adds an option that takes a number to a command.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>
#include <type_traits>

namespace starling {

// Bounds beyond this are not shown to a user who has crossed the other bound.
constexpr double kVastBound = 1e9;

// Returns which numbers an option takes, for example "from 1 to 65535". above: the given one is too large.
template <typename T>
std::string range_text(T smallest, T largest, bool above) {
  const bool no_least = static_cast<double>(smallest) <= -kVastBound;
  const bool no_most = static_cast<double>(largest) >= kVastBound;
  if (above && (no_least || no_most)) return fmt::format("of at most {}", largest);
  if (no_most) return fmt::format("of at least {}", smallest);
  return fmt::format("from {} to {}", smallest, largest);
}

// Returns what is wrong with a text that stands for a number from `smallest` to `largest`, or "".
template <typename T>
std::string refuse_number(const std::string& text, T smallest, T largest) {
  double wide = 0;  // also of a whole number that T cannot hold
  const bool number = CLI::detail::lexical_cast(text, wide) && !std::isnan(wide);
  const char* kind = std::is_integral_v<T> ? "whole number" : "number";
  if (!number || (std::is_integral_v<T> && wide != std::floor(wide)))
    return fmt::format("{} is {} {}; give one {}", text, std::is_integral_v<T> ? "no" : "not a", kind,
                       range_text(smallest, largest, false));
  T value{};
  const bool fits = CLI::detail::lexical_cast(text, value);
  if (fits && smallest <= value && value <= largest) return "";
  const bool above = wide > static_cast<double>(largest);
  if (!fits && !above && wide >= static_cast<double>(smallest))  // such as 1e3
    return fmt::format("{} is written with an exponent or a fraction; write the digits of a whole number",
                       text);
  return fmt::format("{} is too {}; give a {} {}", text, above ? "large" : "small", kind,
                     range_text(smallest, largest, above));
}

// Adds "--name UNIT" for a number from `smallest` to `largest`, which may be infinite. The present value of
// `number` is the default and ends the help text in brackets. A default outside of the range means "not
// given" and is not shown.
template <typename T>
CLI::Option& add_number_option(CLI::App& command, const std::string& name, T& number, const std::string& help,
                               const std::string& unit, std::type_identity_t<T> smallest,
                               std::type_identity_t<T> largest) {
  const bool given = smallest <= number && number <= largest;
  const auto refuse = [smallest, largest](const std::string& text) {
    return refuse_number<T>(text, smallest, largest);
  };
  return *command.add_option(name, number, given ? fmt::format("{} [{}]", help, number) : help)
              ->check(refuse)
              ->type_name(unit);
}

}  // namespace starling
