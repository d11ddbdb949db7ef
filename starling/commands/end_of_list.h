// The object that ends the list of JSON objects of a command.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>

namespace starling {

// Returns {"event":"result","objects":N}, for a list of N objects.
inline std::string end_of_list(size_t objects) {
  return fmt::format(R"({{"event":"result","objects":{}}})", objects);
}

}  // namespace starling
