// The version of this program.
#pragma once

#include <string>

namespace starling {

std::string program_version();

}  // namespace starling
