// thorough: whether a test tries every combination of its inputs.
//
// Under a sanitizer a test takes about ten times as long. Other element types, operations and lengths access
// memory in the same order, so a test may try only some of them. `make check-deep` tries all of them.
#pragma once

#include <cstdlib>

namespace starling {

// Returns false in a build with a sanitizer, unless the environment has STARLING_THOROUGH=1.
inline bool thorough() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  const char* asked = std::getenv("STARLING_THOROUGH");
  return asked != nullptr && *asked == '1';
#else
  return true;
#endif
}

}  // namespace starling
