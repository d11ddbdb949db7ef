// Why settings of a run cannot be combined. The functions that find such a contradiction return it, and
// validate() throws it as a ConfigError.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace starling {

// Why the settings are refused.
struct Refusal {
  std::vector<std::string_view> keys;  // the settings that contradict each other
  std::string text;                    // the reason, and what to write instead
};

}  // namespace starling
