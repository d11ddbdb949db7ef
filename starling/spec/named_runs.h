// Runs that a configuration file describes by name, for `starling compare`.
#pragma once

#include <string>
#include <vector>

#include "starling/spec/config.h"

namespace starling {

// [runs.NAME] holds what differs in that run, by dotted keys (exchange.name = "gossip") or tables. apply_toml (config.h) checks
// them and leaves them aside.
std::vector<std::string> run_names(const std::string& path);  // in the order of the file
// Errors: ConfigError at the place in the file, or where it has no such run.
void apply_run(Config& config, const std::string& path, const std::string& run);

}  // namespace starling
