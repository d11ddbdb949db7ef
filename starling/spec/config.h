// A configuration is put together from sources, each overriding those before it:
//   defaults of RunSpec  <  TOML files (-c, in the order given)  <  --set key=value  <  flags
// and remembers where each value came from. Every function throws ConfigError for what a user may have got
// wrong, with file:line:column or the flag, and the key that was probably meant.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "starling/spec/run_spec.h"
#include "starling/spec/schema.h"

namespace starling {

enum class OriginKind { kDefault, kFile, kSet, kFlag };

struct Origin {
  OriginKind kind = OriginKind::kDefault;
  std::string where;  // "digits.toml:3:8", "--set", "--lr"; empty for a default
};

// By dotted key; a key that is absent has its default.
using Origins = std::map<std::string, Origin, std::less<>>;

struct Config {
  RunSpec spec;
  Origins origins;
};

// "default", or where it was written.
std::string origin_text(const Origins& origins, std::string_view key);

// Reads the text of a TOML file; `name` is what messages call it.
void apply_toml(Config& config, std::string_view text, const std::string& name);
void apply_toml_file(Config& config, const std::string& path);

// "key=value". The value is written as in TOML, except that a text or word may be without quotes:
// optimizer.name=adam.
void apply_set(Config& config, const std::string& assignment);

// The text after a flag; the grammar is that of --set.
void apply_flag(Config& config, const SchemaEntry& entry, const std::string& flag, const std::string& text);

}  // namespace starling
