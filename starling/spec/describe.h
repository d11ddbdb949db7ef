// Documentation that is generated from the schema and from the table of strategies.
#pragma once

#include <string>
#include <string_view>

namespace starling {

// Returns a JSON Schema (draft 2020-12) of configuration files, for editors and validators.
std::string json_schema();

// Returns the reference page of the configuration in Markdown.
std::string schema_markdown();

// Returns the tables of docs/explanation/exchanges.md in Markdown: the exchanges, and the flags that are
// combined with them.
std::string strategies_markdown();

// Describes a key: its meaning, type, default, allowed values and flag. If `key` is the name of a table,
// returns a line for each of its keys. Throws ConfigError for an unknown key and suggests a known one.
std::string explain(std::string_view key);

// Returns the description of a key as a line of JSON, {"event":"explain","key":…}. Throws ConfigError for
// anything but a key.
std::string explain_json(std::string_view key);

}  // namespace starling
