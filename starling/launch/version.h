// Returns the version of this program. The hosts of a job must have equal versions.
#pragma once

#include <string>

namespace starling {

std::string program_version();

}  // namespace starling
