#include "starling/spec/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "starling/base/suggest.h"

namespace starling {
namespace {

// The long name of "-n,--ranks": "--ranks".
std::string long_name(const SchemaEntry& entry) {
  return std::string(entry.flags.substr(entry.flags.rfind("--")));
}

// "What it means [default]" for the help of a flag.
std::string help_line(const SchemaEntry& entry) {
  std::string text(entry.doc);
  if (text.ends_with('.')) text.pop_back();
  if (!entry.allowed.empty()) {
    std::string words(entry.allowed);
    std::replace(words.begin(), words.end(), ' ', '|');
    text += ": " + words;
  }
  return fmt::format("{} [{}]", text, to_toml(default_of(entry)));
}

}  // namespace

void ConfigFlags::add_sources(CLI::App& app) {
  const auto append_to = [](std::vector<std::string>& list) {
    return [&list](const CLI::results_t& values) {
      list.insert(list.end(), values.begin(), values.end());
      return true;
    };
  };
  app.add_option("-c,--config", append_to(files_),
                 "Read this TOML file; a later one overrides an earlier one")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--set", append_to(sets_), "Set one value, as in TOML: --set optimizer.momentum=0.8")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void ConfigFlags::add_flags(CLI::App& app, std::span<const std::string_view> keys) {
  for (const SchemaEntry& entry : schema()) {
    const bool wanted = keys.empty() || std::find(keys.begin(), keys.end(), entry.key) != keys.end();
    if (entry.flags.empty() || !wanted) continue;
    app.add_option(
           std::string(entry.flags),
           [this, &entry](const CLI::results_t& values) {
             flags_.emplace_back(&entry, values.back());
             return true;
           },
           help_line(entry))
        ->type_name(std::string(entry.placeholder))
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group("Configuration");
  }
}

Config ConfigFlags::read() const {
  Config config;
  for (const std::string& file : files_) apply_toml_file(config, file);
  for (const std::string& assignment : sets_) apply_set(config, assignment);
  for (const auto& [entry, text] : flags_) apply_flag(config, *entry, long_name(*entry), text);
  return config;
}

ParsedConfig parse_command_line(int argc, const char* const* argv) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  ConfigFlags flags;
  flags.add_sources(app);
  flags.add_flags(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    throw ConfigError("command line", error.what());
  }
  return {flags.read(), app.remaining()};
}

ConfigError unknown_argument(const std::string& argument, std::vector<std::string> known) {
  const std::string name = argument.substr(0, argument.find('='));
  if (!name.starts_with('-')) return ConfigError(argument, "unexpected argument");
  known.insert(known.end(), {"--config", "--set"});
  for (const SchemaEntry& entry : schema()) {
    if (!entry.flags.empty()) known.push_back(long_name(entry));
  }
  if (std::find(known.begin(), known.end(), name) != known.end()) {
    return ConfigError(
        name, "this command does not take the flag; one that does comes before it: starling train " + name);
  }
  const std::string near = nearest(name, known);
  return ConfigError(name, near.empty() ? "unknown flag; --help lists the flags, --set key=value sets any key"
                                        : fmt::format("unknown flag: did you mean {}?", near));
}

}  // namespace starling
