// Collects what one command line of the program asks for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "starling/commands/commands.h"
#include "starling/commands/queue_command.h"
#include "starling/spec/command_line.h"

namespace CLI {
class App;
}

namespace starling {

// Invocation is filled in while CLI11 parses the command line.
struct Invocation {
  ConfigFlags flags;
  CommandOptions options;
  std::function<int()>
      action;  // runs the command and returns the exit status; empty until a command is parsed
  // Positional arguments and flags of single commands.
  std::vector<std::string> keys;     // config explain KEY …
  std::string source;                // data inspect SOURCE
  std::string model;                 // zoo show MODEL
  std::string strategy;              // strategies NAME
  std::vector<std::string> command;  // help COMMAND
  ZooShowOptions zoo_show;
  double bench_seconds = 6;
  CommBenchOptions bench_comm;
  std::string recorder;  // doctor --recorder DIR
  std::string out_dir;   // data make DIR
  bool force = false;    // data make --force, ckpt export --force
  CompressOptions compress;
  bool averaged = false;  // ckpt export --averaged
  std::string run_dir;    // RUN_DIR of eval, sample, compress and why; ckpt … PATH
  std::string other_dir;  // ckpt diff A B
  std::string file;       // ckpt export PATH FILE
  SampleOptions sample;
  DataServeOptions data_serve;
  std::string serve_interface;  // data serve --interface NAME
  FactorizeSpec factorize;
  LbfgsSpec lbfgs;
  McmcSpec mcmc;
  LassoSpec lasso;
  AutoencoderSpec autoencoder;
  TopicsSpec topics;
  PlaceSpec place;
  ScalingSpec scaling;
  double plan_params = 0;  // plan memory --params
  CompareOptions compare;
  std::vector<std::string> launched;  // launch PROGRAM ARGUMENT…
  std::string shell;                  // completion SHELL
  std::string manual_dir;             // manual DIR
  bool quick = false;                 // tour --quick
  std::string only;                   // tour --only
  bool markdown = false;              // config schema --markdown, strategies --markdown
  std::string queue_state;            // --state DIR of the commands of queue
  bool queue_all = false;             // queue list --all
  std::vector<int64_t> queue_jobs;    // JOB of queue show and queue cancel
  QueueServeOptions queue_serve;
  QueueSubmitOptions queue_submit;
  QueueSimulateOptions queue_simulate;
};

// Returns the configuration of the command line after checking it as a whole. Prints warnings to standard
// error unless -q is given. Only one rank prints them. `launches` says that the command may start ranks.
// `trains` says that the ranks share a batch, whose size must be a multiple of the number of replicas.
Config checked_config(const Invocation& invocation, bool launches = false, bool trains = true);

// CommandText is what help texts say about a command. Examples are whole command lines.
struct CommandText {
  std::string name;
  std::string group;    // the heading in the list of commands; empty: the command is hidden
  std::string summary;  // one line, without a period
  std::string details = "";
  std::vector<std::string> examples = {};
};

// The headings under which `starling --help` lists the commands.
constexpr const char* kTrainGroup = "Train and test";
constexpr const char* kCompareGroup = "Compare and measure";
constexpr const char* kInspectGroup = "Configuration, models and data";
constexpr const char* kMachineGroup = "Hosts and tools";

// Adds the options of every command, with --help and --version.
void add_global_options(CLI::App& app, Invocation& invocation);

// Adds a command below `parent`. The command takes the options of its parents, before or after its name.
// `action` runs after parsing. If a command has no action, the user must name one of its own commands.
CLI::App& add_command(CLI::App& parent, Invocation& invocation, const CommandText& text,
                      std::function<int()> action);
// Prints the help text of a command on standard output.
void print_help(const CLI::App& command);
// Returns the error for a word that is no command below `parent`. The message suggests a command.
ConfigError unknown_command(const CLI::App& parent, const std::string& word);
// Sets the texts of a command.
void set_text(CLI::App& command, const CommandText& text);

// Adds the commands `config show`, `config schema` and `config explain`.
void add_config_commands(CLI::App& app, Invocation& invocation);
// Adds the commands `train`, `eval`, `sample`, `compress` and `verify`.
void add_training_commands(CLI::App& app, Invocation& invocation);
// Adds the commands `ckpt ls`, `ckpt verify`, `ckpt diff` and `ckpt export`.
void add_ckpt_commands(CLI::App& app, Invocation& invocation);
// Adds the command `launch`. The arguments behind its own options are a program and the program's arguments.
void add_launch_command(CLI::App& app, Invocation& invocation);
// Returns COMMAND ARGUMENTS OPTIONS for the command line `launch OPTIONS COMMAND ARGUMENTS` if COMMAND is a
// command of `starling`. Returns an empty list for any other program.
std::vector<std::string> launched_command(const CLI::App& app, const Invocation& invocation);
// Adds the command `doctor`.
void add_doctor_command(CLI::App& app, Invocation& invocation);
// Adds the commands `data make`, `data inspect` and `data serve`.
void add_data_commands(CLI::App& app, Invocation& invocation);
// Adds the commands `strategies`, `zoo ls` and `zoo show`.
void add_zoo_commands(CLI::App& app, Invocation& invocation);
// Adds the command `factorize`.
void add_factor_commands(CLI::App& app, Invocation& invocation);
// Adds the command `lbfgs`.
void add_lbfgs_commands(CLI::App& app, Invocation& invocation);
// Adds the command `mcmc`.
void add_mcmc_commands(CLI::App& app, Invocation& invocation);
// Adds the command `lasso`.
void add_lasso_commands(CLI::App& app, Invocation& invocation);
// Adds the command `autoencoder`.
void add_autoencoder_commands(CLI::App& app, Invocation& invocation);
// Adds the command `topics`.
void add_topics_commands(CLI::App& app, Invocation& invocation);
// Adds the command `place`.
void add_place_commands(CLI::App& app, Invocation& invocation);
// Adds the commands `queue`, `queue serve`, `queue submit`, `queue list`, `queue show`, `queue cancel` and
// `queue simulate`.
void add_queue_commands(CLI::App& app, Invocation& invocation);
// Adds the commands `compare` and `tour`.
void add_compare_commands(CLI::App& app, Invocation& invocation);
// Adds the command `why`.
void add_why_command(CLI::App& app, Invocation& invocation);
// Adds the command `plan memory`.
void add_plan_commands(CLI::App& app, Invocation& invocation);
// Adds the commands `bench layers`, `bench comm` and `bench scaling`.
void add_bench_commands(CLI::App& app, Invocation& invocation);
// Adds the commands `help`, `completion` and `manual`.
void add_shell_commands(CLI::App& app, Invocation& invocation);

}  // namespace starling
