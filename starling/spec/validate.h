// Checks that involve several keys.
#pragma once

#include <string>
#include <vector>

#include "starling/spec/config.h"

namespace starling {

// Throws ConfigError for a combination of values that cannot train. The error names the place where one of
// the keys was written, or the key if it has its default, and a remedy. Returns warnings about values that
// work but are probably a mistake. `cores` is the number of cores of this machine, or 0 if it is unknown.
std::vector<std::string> validate(const RunSpec& spec, const Origins& origins = {}, int cores = 0);

}  // namespace starling
