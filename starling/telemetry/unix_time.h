// The time of day, which events carry.
#pragma once

#include <chrono>

namespace starling {

// Returns the seconds since 1970. The clock of the host may be set back meanwhile.
inline double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace starling
