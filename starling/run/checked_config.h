// Checks a configuration as a whole before a command or a user's program uses it.
#pragma once

#include "starling/launch/environment.h"
#include "starling/spec/config.h"

namespace starling {

// What a configuration is for.
struct ConfigUse {
  bool launches = false;  // the process may start ranks, or is one of them
  bool trains = true;     // the ranks share a batch, whose size must be a multiple of the number of replicas
};

// Counts the ranks, applies the recipes and validates the configuration. Prints warnings to standard error on
// one rank, unless verbosity is negative. Errors: ConfigError.
Config checked_config(Config config, const Environment& environment, const ConfigUse& use, int verbosity);

}  // namespace starling
