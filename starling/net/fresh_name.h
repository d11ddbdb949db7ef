// A name that nobody can guess or take: for an abstract Unix socket, and for the job that meets there.
#pragma once

#include <string>

namespace starling {

// "starling-" and half of a key that is used for nothing else, in hexadecimal. Error where the system has no randomness.
std::string fresh_name();

}  // namespace starling
