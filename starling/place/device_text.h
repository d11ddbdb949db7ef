// Reads devices from the text of a flag.
#pragma once

#include <string>
#include <vector>

#include "starling/place/graph.h"

namespace starling {

// Parses speeds with optional memories, such as "1,0.5" or "1:16GB,0.5:512MB". The units are kB, MB and GB,
// powers of 1000. Devices are named "device 0" and so on. Errors: ConfigError (--devices) that shows the
// form, for more than 16 devices, and for a speed or a memory that is not above 0.
std::vector<PlacementDevice> parse_devices(const std::string& text);

}  // namespace starling
