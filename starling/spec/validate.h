// The checks that look at more than one key.
#pragma once

#include <string>
#include <vector>

#include "starling/spec/config.h"

namespace starling {

// Throws ConfigError for a combination that cannot train; it names the place where one of the keys was
// written (the key where that is a default) and the remedy. Returns warnings about what works but is probably
// not meant. cores: of this machine; 0 = unknown, which warns of nothing that depends on it.
std::vector<std::string> validate(const RunSpec& spec, const Origins& origins = {}, int cores = 0);

}  // namespace starling
