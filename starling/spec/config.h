// Config combines the sources of a configuration and remembers the origin of each value. Later sources
// override earlier ones:
//
//   defaults of RunSpec  <  recipes (recipes.h)  <  the code of a program  <  TOML files (-c, in the order
//   given)  <  --set  <  flags
//
// Every function throws ConfigError for a mistake of the user. The error names file:line:column or the flag,
// and suggests the key that the user probably meant.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "starling/spec/run_spec.h"
#include "starling/spec/schema.h"

namespace starling {

enum class OriginKind { kDefault, kRecipe, kCode, kFile, kSet, kFlag };

struct Origin {
  OriginKind kind = OriginKind::kDefault;
  std::string where;  // "recipe of lenet5", "digits.toml:3:8", "--set", "--lr"; empty for a default
};

// Origins by dotted key. A key that is absent has its default value.
using Origins = std::map<std::string, Origin, std::less<>>;

struct Config {
  RunSpec spec;
  Origins origins;
};

// Returns true if the user wrote a value for the key: in the program, in a file, with --set or with a flag.
bool is_given(const Origins& origins, std::string_view key);

// Returns "default", the name of a recipe, or the place where the value was written.
std::string origin_text(const Origins& origins, std::string_view key);

// Reads the text of a TOML file. Messages call the file `name`.
void apply_toml(Config& config, std::string_view text, const std::string& name);
void apply_toml_file(Config& config, const std::string& path);

// Reads "key=value". The value is written as in TOML, but a string needs no quotes: optimizer.name=adam.
void apply_set(Config& config, const std::string& assignment);

// Stores the value that a program sets for a key. The value is written as for --set. `call` is the function
// that the program calls, for messages.
void apply_code(Config& config, const std::string& key, const std::string& text,
                const std::string& call = "starling::init");

// Stores the value that the configuration of an earlier run has for a key. Files, --set and flags override
// it.
void apply_earlier(Config& config, const SchemaEntry& entry, const RunSpec& earlier,
                   const std::string& where);

// Stores the value that a recipe has for a key.
void apply_recipe(Config& config, const SchemaEntry& entry, const std::string& recipe,
                  const std::string& text);

// Reads the argument of a flag. The value is written as for --set.
void apply_flag(Config& config, const SchemaEntry& entry, const std::string& flag, const std::string& text);

}  // namespace starling
