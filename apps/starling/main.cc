// The program `starling`: parses the command line, runs one command, and turns what it throws into a message and an
// exit status (exit_status.h).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <regex>

#include "apps/starling/help.h"
#include "apps/starling/invocation.h"
#include "starling/base/suggest.h"
#include "starling/launch/host_agent.h"
#include "starling/run/exit_status.h"
#include "starling/telemetry/output.h"

namespace starling {

void add_global_options(CLI::App& app, Invocation& invocation) {
  app.set_help_flag("-h,--help", "Print this help, or that of a command");
  app.set_version_flag("--version", "starling " STARLING_VERSION, "Print the version");
  invocation.flags.add_sources(app);
  app.add_flag("--json", invocation.options.json, "Print one JSON object a line on standard output");
  app.add_flag("--dry-run", invocation.options.dry_run, "Say what would be done, and do not do it");
  app.add_flag_function(
      "-q,--quiet", [&](int64_t count) { invocation.options.verbosity -= static_cast<int>(count); },
      "Print results and errors only");
  app.add_flag_function(
      "-v,--verbose", [&](int64_t count) { invocation.options.verbosity += static_cast<int>(count); },
      "Print more; -vv even more");
  app.add_option("--color", invocation.options.color,
                 "Colours: auto, always or never [auto; NO_COLOR is honoured]")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

namespace {

void add_commands(CLI::App& app, Invocation& invocation) {
  app.require_subcommand(0, 1);
  add_training_commands(app, invocation);
  add_launch_command(app, invocation);
  add_config_commands(app, invocation);
  add_tool_commands(app, invocation);
  add_factor_commands(app, invocation);
  add_zoo_commands(app, invocation);
  add_compare_commands(app, invocation);
  add_plan_commands(app, invocation);
  add_bench_commands(app, invocation);
}

// The innermost command that was named.
const CLI::App& innermost(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : innermost(*parsed.front());
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// What nothing has taken: a misspelt flag or command. Throws ConfigError if there is any.
void refuse_extras(const CLI::App& app) {
  const bool launches = innermost(app).get_prefix_command();  // what follows is another program's
  const std::vector<std::string> extras = launches ? app.remaining(false) : app.remaining(true);
  if (extras.empty()) return;
  const std::string& first = extras.front();
  const std::vector<std::string> commands = command_names(innermost(app));
  if (!first.starts_with('-') && !commands.empty()) {
    const std::string near = nearest(first, commands);
    throw ConfigError(first, near.empty()
                                 ? fmt::format("unknown command; see {} --help", full_name(innermost(app)))
                                 : fmt::format("unknown command: did you mean {}?", near));
  }
  throw unknown_argument(
      first, {"--json", "--dry-run", "--quiet", "--verbose", "--color", "--help", "--version", "--markdown"});
}

// CLI11's "--steps: 1 required N missing" as "--steps needs N".
std::string in_words(const std::string& said) {
  static const std::regex missing("^(-\\S+): 1 required (\\S+) missing$");
  return std::regex_replace(said, missing, "$1 needs $2");
}

int report(const std::vector<std::string>& argv, ErrorCode code, const std::string& message, int rank) {
  std::fflush(stdout);
  fmt::print(stderr, "starling: error: {}\n", message);
  if (std::find(argv.begin(), argv.end(), "--json") != argv.end()) {
    nlohmann::ordered_json line = {{"event", "error"}, {"code", code_word(code)}, {"message", message}};
    if (rank >= 0) line["rank"] = rank;
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  std::fflush(stdout);
  return exit_status(code);
}

// Parses and runs; throws what is wrong.
int run(int argc, const char* const* argv) {  // NOLINT(misc-no-recursion): `launch train` is `train`
  Invocation invocation;
  invocation.options.argv.assign(argv, argv + argc);
  CLI::App app("Starling trains neural networks on one core, all cores, or many processes", "starling");
  app.allow_extras();
  const int columns = FdOutput(1).columns();
  app.formatter(std::make_shared<WrappedHelp>(columns > 0 ? columns : 80));
  app.footer(
      "starling COMMAND --help describes one; starling config explain KEY describes a value of the "
      "configuration.");
  add_global_options(app, invocation);
  add_commands(app, invocation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", help_of(innermost(app)));
    return kExitOk;
  } catch (const CLI::CallForVersion& version) {
    fmt::print("{}\n", version.what());
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    refuse_extras(app);  // what was misspelt says more than what is then missing
    throw ConfigError(full_name(innermost(app)), in_words(error.what()));
  }
  refuse_extras(app);
  if (const std::vector<std::string> words = launched_command(app, invocation); !words.empty()) {
    std::vector<const char*> pointers;
    pointers.reserve(words.size());
    for (const std::string& word : words) pointers.push_back(word.c_str());
    return run(static_cast<int>(pointers.size()), pointers.data());
  }
  if (!invocation.action && argc == 1) {
    fmt::print("{}", help_of(app));
    return kExitConfig;
  }
  if (!invocation.action) {
    throw ConfigError(full_name(innermost(app)), fmt::format("name a command: {}; --help explains them",
                                                             fmt::join(command_names(innermost(app)), ", ")));
  }
  return invocation.action();
}

int run_and_report(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return report(arguments, error.code(), error.what(), error.rank());
  } catch (const std::bad_alloc&) {
    return report(arguments, ErrorCode::kMemory, "out of memory: use a smaller batch, or fewer ranks", -1);
  } catch (const std::exception& error) {
    return report(arguments, ErrorCode::kInternal, error.what(), -1);
  } catch (...) {
    return report(arguments, ErrorCode::kInternal, "a fault of unknown kind", -1);
  }
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  if (starling::is_host_agent(argc, argv)) return starling::run_host_agent(::environ);
  return starling::run_and_report(argc, argv);
}
