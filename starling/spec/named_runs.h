// Named runs in configuration files, for `starling compare`.
#pragma once

#include <string>
#include <vector>

#include "starling/spec/config.h"

namespace starling {

// A table [runs.NAME] holds the values of that run as dotted keys (exchange.name = "gossip") or tables.
// apply_toml() (config.h) checks these tables but does not apply them.

// Returns the names of the runs in the order of the file.
std::vector<std::string> run_names(const std::string& path);

// Applies the values of a run. Throws ConfigError at the place in the file, or if the file has no such run.
void apply_run(Config& config, const std::string& path, const std::string& run);

}  // namespace starling
