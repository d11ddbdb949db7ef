// The version of this program.
#pragma once

#include <string>

namespace starling {

// Returns the version. The hosts of a job must have equal versions.
std::string program_version();

}  // namespace starling
