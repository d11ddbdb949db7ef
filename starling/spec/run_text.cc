#include "starling/spec/run_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/spec/enum_words.h"
#include "starling/spec/mesh.h"
#include "starling/spec/named_runs.h"
#include "starling/spec/recipes.h"

namespace starling {
namespace {

constexpr const char* kFlag = "--runs";
constexpr std::string_view kCodec = "codec=";

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    std::string part(text.substr(begin, end - begin));
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    if (!part.empty()) parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

// Returns the names of an entry's flags without dashes.
std::vector<std::string> flag_names(const SchemaEntry& entry) {
  std::vector<std::string> names = split(entry.flags, ',');
  for (std::string& name : names) name.erase(0, name.find_first_not_of('-'));
  return names;
}

const SchemaEntry& entry_of(const std::string& run, const std::string& key) {
  if (const SchemaEntry* entry = find_entry(key)) return *entry;
  std::vector<std::string> known;
  for (const SchemaEntry& entry : schema()) {
    for (const std::string& name : flag_names(entry)) {
      if (name == key) return entry;
      known.push_back(name);
    }
  }
  if (const SchemaEntry* entry = find_entry("exchange." + key)) return *entry;
  const std::string near = nearest(key, known);
  throw ConfigError(
      fmt::format("{} {}", kFlag, run),
      fmt::format("there is no key {}{}", key,
                  near.empty() ? ": `starling config show` lists all keys" : ": did you mean " + near + "?"));
}

void apply_part(Config& config, const std::string& run, const std::string& part) {
  const size_t equals = part.find('=');
  if (equals != std::string::npos) {
    apply_flag(config, entry_of(run, part.substr(0, equals)), kFlag, part.substr(equals + 1));
    return;
  }
  const SchemaEntry& exchange = *find_entry("exchange.name");
  if (!find_word(exchange.allowed, part)) {
    const std::vector<std::string> names = split_words(exchange.allowed);
    const std::string near = nearest(part, names);
    throw ConfigError(
        fmt::format("{} {}", kFlag, run),
        fmt::format("\"{}\" is not a run: {}name an exchange ({}), KEY=VALUE, or a table [runs.{}] of the "
                    "file that -c names",
                    part, near.empty() ? "" : "did you mean " + near + "? ", fmt::join(names, ", "), part));
  }
  apply_flag(config, exchange, kFlag, part);
}

bool makes_up(const std::string& mesh, int64_t ranks) {
  const int64_t named = ranks_named(mesh);
  return mesh.find("replica=") == std::string::npos ? ranks % named == 0 : ranks == named;
}

}  // namespace

std::vector<std::string> split_runs(const std::string& text) {
  const std::vector<std::string> runs = split(text, text.find(';') == std::string::npos ? ',' : ';');
  if (runs.empty())
    throw ConfigError(kFlag, "names no run. Write for example --runs all-reduce,local-sgd:every=8");
  for (size_t i = 0; i < runs.size(); ++i) {
    if (std::find(runs.begin(), runs.begin() + static_cast<ptrdiff_t>(i), runs[i]) !=
        runs.begin() + static_cast<ptrdiff_t>(i))
      throw ConfigError(kFlag, fmt::format("names {} twice", runs[i]));
  }
  return runs;
}

Config config_of_run(const Config& base, const std::vector<std::string>& files, const std::string& run) {
  Config config = base;
  for (const std::string& file : files) {
    const std::vector<std::string> names = run_names(file);
    if (std::find(names.begin(), names.end(), run) == names.end()) continue;
    apply_run(config, file, run);
    apply_recipes(config);
    return config;
  }
  for (size_t begin = 0; begin < run.size();) {
    const bool codec = std::string_view(run).substr(begin).starts_with(kCodec);
    const size_t end = codec ? run.size() : std::min(run.find(':', begin), run.size());
    apply_part(config, run, run.substr(begin, end - begin));
    begin = end + 1;
  }
  const std::string& mesh = config.spec.train.mesh;
  if (mesh != base.spec.train.mesh && config.spec.train.ranks == base.spec.train.ranks &&
      !makes_up(mesh, config.spec.train.ranks))
    config.spec.train.ranks = ranks_named(mesh);
  apply_recipes(config);
  return config;
}

}  // namespace starling
