// STARLING_CHECK(condition, "format {}", args…) ends the process with file, line and message if `condition`
// is false. It is for bugs in Starling only. A fault that a user or the environment can cause throws an
// Error.
#pragma once

#include <fmt/format.h>

#include <string>

namespace starling {

// Prints the place, the condition and the message to standard error, and aborts the process. STARLING_CHECK
// calls it.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace starling

#define STARLING_CHECK(condition, ...)                                                       \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::starling::check_failed(__FILE__, __LINE__, #condition, fmt::format("" __VA_ARGS__)); \
  } while (false)
