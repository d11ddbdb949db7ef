// The part of a command line that is configuration: -c FILE, --set key=value and the flags of the schema. The
// program `starling` and programs of users (starling::init) read it with the same code.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/spec/config.h"

namespace CLI {
class App;
}

namespace starling {

// Collects the configuration's options of a command line while CLI11 parses it. Lives as long as the apps
// that it was added to.
class ConfigFlags {
 public:
  ConfigFlags() = default;
  ConfigFlags(const ConfigFlags&) = delete;
  ConfigFlags& operator=(const ConfigFlags&) = delete;

  // -c, --config FILE and --set key=value.
  void add_sources(CLI::App& app);
  // One flag for each schema entry that has one; where keys are named, for these only.
  void add_flags(CLI::App& app, std::span<const std::string_view> keys = {});
  // What was parsed, put together: defaults, files, --set, flags. Reads the files. Throws ConfigError.
  Config read() const;
  // What -c named, in order.
  const std::vector<std::string>& files() const { return files_; }

 private:
  std::vector<std::string> files_;
  std::vector<std::string> sets_;
  std::vector<std::pair<const SchemaEntry*, std::string>> flags_;  // entry, text
};

struct ParsedConfig : Config {
  std::vector<std::string> rest;  // in order: what is not configuration, the program's name excepted
};

// The command line of a user's program. Nothing in `rest` is refused: it may be the program's own. Throws
// ConfigError.
ParsedConfig parse_command_line(int argc, const char* const* argv);

// The error for an argument that no option matches; names the nearest flag among `known`, or of the
// configuration.
ConfigError unknown_argument(const std::string& argument, std::vector<std::string> known = {});

}  // namespace starling
