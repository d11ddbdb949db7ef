// Prints configurations as TOML and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "starling/spec/config.h"

namespace starling {

// Returns TOML with every key, its value, and its origin in a comment. Reading the text gives an equal
// RunSpec.
std::string config_to_toml(const Config& config);

// Returns TOML with every key and its value, for the run folder. If the run is one of a user's program, the
// text lacks the keys that the program determines (program_brings()). Reading the text gives an equal
// RunSpec.
std::string spec_to_toml(const RunSpec& spec);

// Returns {"model": {"name": "lenet5", …}, …}, for state.json of a checkpoint and for config_to_json_line().
nlohmann::json spec_to_json(const RunSpec& spec);

// The inverse of spec_to_json(). A key that is absent has its default value. Throws ConfigError at `where`
// for an unknown key or an invalid value.
RunSpec spec_from_json(const nlohmann::json& json, const std::string& where);

// Returns one line: {"event": "config", "values": spec_to_json(), "origins": {"optimizer.lr": "--lr", …}}.
std::string config_to_json_line(const Config& config);

struct Difference {
  std::string key;
  std::string a, b;  // both values as TOML
};

// Returns the keys whose values differ, in the order of the schema. Ignores keys that do not shape training:
// folders, the length of the run, checkpoints and communication (SchemaEntry::shapes_training). It reports
// train.threads if the threads train without locks.
std::vector<Difference> differences(const RunSpec& a, const RunSpec& b);

}  // namespace starling
