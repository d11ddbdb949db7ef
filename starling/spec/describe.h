// The schema as documentation.
#pragma once

#include <string>
#include <string_view>

namespace starling {

// The schema of a configuration file as JSON Schema, draft 2020-12, for editors and checkers.
std::string json_schema();

// docs/configuration.md.
std::string schema_markdown();

// What one key means, its type, default, allowed values and flag; a table name explains each of its keys in a
// line. ConfigError names the near key of an unknown one.
std::string explain(std::string_view key);

// The same of one key as a line of JSON, {"event":"explain","key":…}.
std::string explain_json(std::string_view key);

}  // namespace starling
