// The error of a data file that cannot be opened.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "starling/base/error.h"

namespace starling {

// Returns the error for a file that could not be opened. Must be called right after the attempt, because it
// takes the reason from errno.
inline DataError unopened_file(const std::string& path) {
  const int reason = errno;
  return DataError(fmt::format("{}: cannot be opened: {}; check the path and its permissions", path,
                               std::generic_category().message(reason)));
}

}  // namespace starling
