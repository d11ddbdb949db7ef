// What one command line of the program asks for, filled in while it is parsed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "starling/run/commands.h"
#include "starling/spec/command_line.h"

namespace CLI {
class App;
}

namespace starling {

struct Invocation {
  ConfigFlags flags;
  CommandOptions options;
  std::function<int()> action;  // the command; returns the exit status; empty until one is parsed
  // Positional arguments and flags of single commands.
  std::string key;     // config explain KEY
  std::string source;  // data inspect SOURCE
  std::string model;   // zoo show MODEL
  ZooShowOptions zoo_show;
  double bench_seconds = 6;
  CommBenchOptions bench_comm;
  std::string recorder;  // doctor --recorder DIR
  std::string out_dir;   // data make DIR
  DataServeOptions data_serve;
  std::string serve_interface;  // data serve --interface NAME
  FactorizeSpec factorize;
  ScalingSpec scaling;
  double plan_params = 0;  // plan memory --params
  CompareOptions compare;
  std::vector<std::string> launched;  // launch PROGRAM ARGUMENT…
  bool quick = false;                 // tour --quick
  std::string only;                   // tour --only
  bool markdown = false;              // config schema --markdown
};

// The configuration of the command line, checked as a whole; warnings go to standard error unless -q, once for all ranks.
// launches: the command may start ranks. trains: they share a batch, which must divide by their number.
Config checked_config(const Invocation& invocation, bool launches = false, bool trains = true);

// A subcommand that takes the options of its parents too, before or after its name. action: run after parsing.
CLI::App& add_command(CLI::App& parent, Invocation& invocation, const std::string& name,
                      const std::string& help, std::function<int()> action);

// config show | schema | explain
void add_config_commands(CLI::App& app, Invocation& invocation);
// train, eval, verify
void add_training_commands(CLI::App& app, Invocation& invocation);
// The options of every command.
void add_global_options(CLI::App& app, Invocation& invocation);
// launch: takes what follows its own options as a program and its arguments, whatever they look like.
void add_launch_command(CLI::App& app, Invocation& invocation);
// The command line for `launch OPTIONS COMMAND ARGUMENTS` where COMMAND is one of ours: COMMAND ARGUMENTS OPTIONS. Empty where it is none.
std::vector<std::string> launched_command(const CLI::App& app, const Invocation& invocation);
// data make | inspect | serve, doctor
void add_tool_commands(CLI::App& app, Invocation& invocation);
// zoo ls | show
void add_zoo_commands(CLI::App& app, Invocation& invocation);
// factorize
void add_factor_commands(CLI::App& app, Invocation& invocation);
// compare, tour
void add_compare_commands(CLI::App& app, Invocation& invocation);
// plan memory
void add_plan_commands(CLI::App& app, Invocation& invocation);
// bench layers | comm | scaling
void add_bench_commands(CLI::App& app, Invocation& invocation);

}  // namespace starling
