// The program `starling` parses the command line and runs one command. It turns exceptions into a message and
// an exit status (exit_status.h).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "apps/starling/invocation.h"
#include "apps/starling/version_text.h"
#include "starling/base/suggest.h"
#include "starling/launch/host_agent.h"
#include "starling/run/message/command_page.h"
#include "starling/run/message/exit_status.h"
#include "starling/run/message/help.h"
#include "starling/run/message/print_error.h"
#include "starling/telemetry/output.h"

namespace starling {

void add_global_options(CLI::App& app, Invocation& invocation) {
  add_global_options(app, kGlobalGroup, invocation.flags, invocation.options);
  app.set_help_flag("-h,--help", "Print the help text");
  app.set_version_flag("--version", version_text, "Print the version");
  app.option_defaults()->group("Options");
}

namespace {

void add_commands(CLI::App& app, Invocation& invocation) {
  app.require_subcommand(0, 1);
  add_training_commands(app, invocation);
  add_ckpt_commands(app, invocation);
  add_factor_commands(app, invocation);
  add_lbfgs_commands(app, invocation);
  add_mcmc_commands(app, invocation);
  add_lasso_commands(app, invocation);
  add_autoencoder_commands(app, invocation);
  add_topics_commands(app, invocation);
  add_place_commands(app, invocation);
  add_compare_commands(app, invocation);
  add_why_command(app, invocation);
  add_bench_commands(app, invocation);
  add_config_commands(app, invocation);
  add_zoo_commands(app, invocation);
  add_data_commands(app, invocation);
  add_plan_commands(app, invocation);
  add_launch_command(app, invocation);
  add_queue_commands(app, invocation);
  add_doctor_command(app, invocation);
  add_shell_commands(app, invocation);
}

// Returns the innermost command that was parsed.
const CLI::App& innermost(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : innermost(*parsed.front());
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

}  // namespace

ConfigError unknown_command(const CLI::App& parent, const std::string& word) {
  const std::string near = nearest(word, command_names(parent));
  return {word, near.empty() ? fmt::format("unknown command. {} --help lists the commands", full_name(parent))
                             : fmt::format("unknown command: did you mean {}?", near)};
}

void print_help(const CLI::App& command) {
  const int columns = FdOutput(1).columns();
  fmt::print("{}", help_text(page_of(command), columns > 0 ? columns : 80));
}

namespace {

// Throws ConfigError if an argument was not parsed: a misspelled flag or command.
void refuse_extras(const CLI::App& app) {
  const bool launches = innermost(app).get_prefix_command();  // the rest belongs to another program
  const std::vector<std::string> extras = launches ? app.remaining(false) : app.remaining(true);
  if (extras.empty()) return;
  const std::string& first = extras.front();
  if (!first.starts_with('-') && !command_names(innermost(app)).empty())
    throw unknown_command(innermost(app), first);
  throw unknown_argument(
      first, {"--json", "--dry-run", "--quiet", "--verbose", "--color", "--help", "--version", "--markdown"});
}

// Parses the command line and runs the command. Throws the errors of both.
int run(int argc, const char* const* argv) {  // NOLINT(misc-no-recursion): `launch train` is `train`
  Invocation invocation;
  invocation.options.argv.assign(argv, argv + argc);
  CLI::App app("", "starling");
  app.allow_extras();
  set_text(app, {.name = "starling",
                 .group = "",
                 .summary = "Train neural networks on one core, one machine or a cluster",
                 .examples = {"starling train --model lenet5 --data digits -n 2",
                              "starling compare -n 4 --runs all-reduce,gossip --budget seconds=20",
                              "starling launch --hosts node-a:4,node-b:4 train -c job.toml"}});
  add_global_options(app, invocation);
  add_commands(app, invocation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print_help(innermost(app));
    return kExitOk;
  } catch (const CLI::CallForVersion& version) {
    fmt::print("{}\n", version.what());
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    refuse_extras(app);  // a misspelled flag explains more than the option that is missing because of it
    throw ConfigError(full_name(innermost(app)), parse_error_in_words(error.what()));
  }
  refuse_extras(app);
  if (const std::vector<std::string> words = launched_command(app, invocation); !words.empty()) {
    std::vector<const char*> pointers;
    pointers.reserve(words.size());
    for (const std::string& word : words) pointers.push_back(word.c_str());
    return run(static_cast<int>(pointers.size()), pointers.data());
  }
  if (!invocation.action && argc == 1) {
    print_help(app);
    return kExitConfig;
  }
  if (!invocation.action) {
    const bool root = innermost(app).get_parent() == nullptr;  // the word "starling:" begins the message
    throw ConfigError(root ? "command line" : full_name(innermost(app)),
                      fmt::format("name a command: {}. --help describes them",
                                  fmt::join(command_names(innermost(app)), ", ")));
  }
  return invocation.action();
}

int run_and_report(int argc, const char* const* argv) {
  const bool json = asks_for_json({argv, static_cast<size_t>(argc)});
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return print_error(json, error);
  } catch (...) {
    return print_error(json, std::runtime_error("an unknown exception"));
  }
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  if (starling::is_host_agent(argc, argv)) return starling::run_host_agent(::environ);
  return starling::run_and_report(argc, argv);
}
