// A configuration as text: for people, as TOML, as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "starling/spec/config.h"

namespace starling {

// Every key with its value, aligned, and where it came from as a comment: TOML that reads back as the same
// RunSpec.
std::string config_to_toml(const Config& config);

// {"model": {"name": "lenet5", …}, …}, for the run's manifest.
nlohmann::json spec_to_json(const RunSpec& spec);

// The inverse. A key that is absent has its default; an unknown one or a wrong value is a ConfigError at
// `where`.
RunSpec spec_from_json(const nlohmann::json& json, const std::string& where);

// {"event": "config", "values": as spec_to_json, "origins": {"optimizer.lr": "--lr", …}}; one line.
std::string config_to_json_line(const Config& config);

struct Difference {
  std::string key;
  std::string a, b;  // both values as TOML
};

// The first key, in schema order, whose values differ among those that shape training; paths of folders, the
// length of the run, checkpoints and communication do not (SchemaEntry::shapes_training).
std::optional<Difference> first_difference(const RunSpec& a, const RunSpec& b);

}  // namespace starling
