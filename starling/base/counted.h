// Counts things in texts for people.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace starling {

// Returns "1 round" or "2 rounds" for the word "round", whose plural adds an s.
inline std::string counted(int64_t count, const char* word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

}  // namespace starling
