#include <unistd.h>

#include <CLI/CLI.hpp>
#include <string_view>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"
#include "starling/base/error.h"

namespace starling {
namespace {

// Returns the value of an environment variable, or "".
std::string variable(std::string_view name) {
  for (const char* const* entry = ::environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.size() > name.size() && text.starts_with(name) && text[name.size()] == '=')
      return std::string(text.substr(name.size() + 1));
  }
  return {};
}

// Returns the folder of --state, or that of this account.
std::string state_folder(const std::string& given) {
  if (!given.empty()) return given;
  const std::string state = variable("XDG_STATE_HOME"), home = variable("HOME");
  if (state.starts_with('/')) return state + "/starling/queue";
  if (!home.starts_with('/'))
    throw ConfigError("--state", "name the folder of the queue, because HOME is not set");
  return home + "/.local/state/starling/queue";
}

void add_state_option(CLI::App& command, Invocation& invocation) {
  command
      .add_option("--state", invocation.queue_state,
                  "Folder of the queue [$XDG_STATE_HOME/starling/queue or ~/.local/state/starling/queue]")
      ->type_name("DIR");
}

void add_serve(CLI::App& queue, Invocation& invocation) {
  CLI::App& command = add_command(
      queue, invocation,
      {.name = "serve",
       .group = "Commands",
       .summary = "Run the daemon that starts and stops the jobs",
       .details =
           "Jobs start by `starling launch`. The daemon may be killed at any moment. Jobs that run go on, "
           "and the next daemon finds them again.",
       .examples = {"starling queue serve",
                    "starling queue serve --hosts a:8,b:8 --users ada:2,bert,cleo:1:5"}},
      [&invocation] {
        invocation.queue_serve.state = state_folder(invocation.queue_state);
        return queue_serve_command(invocation.queue_serve, invocation.options);
      });
  QueueServeOptions& serve = invocation.queue_serve;
  add_state_option(command, invocation);
  command
      .add_option("--hosts", serve.hosts, "Hosts and slots, for example a:8,b:8 [this host, a slot per core]")
      ->type_name("LIST");
  command
      .add_option("--users", serve.users,
                  "Users with their shares and largest priorities, NAME[:SHARE[:PRIORITY]] [every user, "
                  "equal shares]")
      ->type_name("LIST");
  add_number_option(command, "--half-life", serve.half_life_h, "Hours after which past usage counts half",
                    "H", 0.01, 1e5);
  add_number_option(command, "--age-limit", serve.age_limit_h,
                    "Hours of waiting after which a job precedes all younger jobs", "H", 0, 1e5);
  add_number_option(command, "--min-run", serve.min_run_min, "Minutes that a job runs before it is preempted",
                    "MIN", 0, 1e6);
  add_number_option(command, "--grace", serve.grace_s, "Seconds that a job gets to write its checkpoint", "S",
                    1, 1e6);
  command.add_flag("--until-empty", serve.until_empty, "End when no job is left");
}

void add_submit(CLI::App& queue, Invocation& invocation) {
  CLI::App& command = *queue.add_subcommand("submit");
  set_text(
      command,
      {.name = "submit",
       .group = "Commands",
       .summary = "Add a job",
       .details =
           "The words behind the options are the job, as behind `starling launch`: a command of "
           "starling, such as train, or any program. The job runs in the present folder with the present "
           "environment.",
       .examples = {"starling queue submit -n 4 --time 90 train -c job.toml --run-dir runs/a",
                    "starling queue submit -n 2 --user ada python3 train.py"}});
  command.fallthrough(false);  // the words of the job stay with this command
  command.prefix_command();
  command.callback([&invocation, &command] {
    invocation.queue_submit.words = command.remaining();
    if (invocation.queue_submit.words.empty())
      throw ConfigError("starling queue submit",
                        "name the program to run: starling queue submit -n 2 PROGRAM ARGUMENT …");
    if (invocation.queue_submit.words.front().starts_with('-'))
      throw unknown_argument(invocation.queue_submit.words.front());
    invocation.action = [&invocation] {
      invocation.queue_submit.state = state_folder(invocation.queue_state);
      for (const char* const* entry = ::environ; *entry != nullptr; ++entry)
        invocation.queue_submit.environment.emplace_back(*entry);
      return queue_submit_command(invocation.queue_submit, invocation.options);
    };
  });
  add_global_options(command, invocation);
  QueueSubmitOptions& submit = invocation.queue_submit;
  add_state_option(command, invocation);
  add_number_option(command, "-n,--ranks", submit.ranks, "Slots: all start together", "N", 1, 1 << 20);
  command.add_option("--user", submit.user, "Whose share the job uses [the name of this account]")
      ->type_name("NAME");
  add_number_option(command, "--priority", submit.priority, "A larger priority starts first", "P", -1000,
                    1000);
  add_number_option(command, "--time", submit.expected_min, "Minutes that the job will take, for planning",
                    "MIN", 0.01, 1e6);
}

void add_views(CLI::App& queue, Invocation& invocation) {
  CLI::App& list = add_command(queue, invocation,
                               {.name = "list",
                                .group = "Commands",
                                .summary = "List the jobs",
                                .examples = {"starling queue list --all"}},
                               [&invocation] {
                                 return queue_list_command(state_folder(invocation.queue_state),
                                                           invocation.queue_all, invocation.options);
                               });
  add_state_option(list, invocation);
  list.add_flag("--all", invocation.queue_all, "Also jobs that have ended");
  CLI::App& show = add_command(queue, invocation,
                               {.name = "show",
                                .group = "Commands",
                                .summary = "Print a job and its history",
                                .examples = {"starling queue show 3"}},
                               [&invocation] {
                                 return queue_show_command(state_folder(invocation.queue_state),
                                                           invocation.queue_jobs.front(), invocation.options);
                               });
  add_state_option(show, invocation);
  show.add_option("JOB", invocation.queue_jobs, "Number of the job")->required()->expected(1)->type_name("");
  CLI::App& cancel = add_command(queue, invocation,
                                 {.name = "cancel",
                                  .group = "Commands",
                                  .summary = "Cancel jobs",
                                  .examples = {"starling queue cancel 3 4"}},
                                 [&invocation] {
                                   return queue_cancel_command(state_folder(invocation.queue_state),
                                                               invocation.queue_jobs, invocation.options);
                                 });
  add_state_option(cancel, invocation);
  cancel.add_option("JOB", invocation.queue_jobs, "Numbers of the jobs")->required()->type_name("");
}

void add_simulate(CLI::App& queue, Invocation& invocation) {
  CLI::App& command = add_command(
      queue, invocation,
      {.name = "simulate",
       .group = "Commands",
       .summary = "Simulate days of a cluster with 64 slots",
       .details =
           "The simulation asks the policy of the daemon after each event. It counts the time in which jobs "
           "write and read checkpoints.",
       .examples = {"starling queue simulate", "starling queue simulate --load 0.9 --no-preemption"}},
      [&invocation] { return queue_simulate_command(invocation.queue_simulate, invocation.options); });
  QueueSimulateOptions& simulate = invocation.queue_simulate;
  add_number_option(command, "--days", simulate.seeds, "Number of days, each with a seed of its own", "N", 1,
                    1000);
  add_number_option(command, "--seed", simulate.seed, "Seed of the first day", "N", 0, uint64_t{1} << 62);
  add_number_option(command, "--load", simulate.load, "Work that arrives, relative to all slots", "X", 0.01,
                    10);
  add_number_option(command, "--largest", simulate.largest, "Slots of the largest job", "N", 1, 64);
  add_number_option(command, "--save-time", simulate.save_s, "Seconds to write a checkpoint", "S", 0, 1e5);
  add_number_option(command, "--restore-time", simulate.restore_s, "Seconds to start from a checkpoint", "S",
                    0, 1e5);
  add_number_option(command, "--age-limit", simulate.age_limit_h,
                    "Hours of waiting after which a job precedes all younger jobs", "H", 0, 1e5);
  add_number_option(command, "--min-run", simulate.min_run_min,
                    "Minutes that a job runs before it is preempted", "MIN", 0, 1e6);
  command.add_flag("--no-preemption", simulate.no_preemption, "Never stop a job that runs");
}

}  // namespace

void add_queue_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& queue = add_command(
      app, invocation,
      {.name = "queue",
       .group = kMachineGroup,
       .summary = "Share a cluster among the jobs of several users",
       .details =
           "A daemon starts jobs by gangs, priorities and fair shares, and preempts them by checkpoints "
           "(backfill: Lifka 1995). Without a command, it simulates five days of a cluster with 64 slots.",
       .examples = {"starling queue", "starling queue serve", "starling queue submit -n 4 train -c job.toml",
                    "starling queue list"}},
      {});
  queue.require_subcommand(0, 1);
  queue.callback([&invocation, &queue] {
    if (!queue.get_subcommands().empty()) return;
    invocation.action = [&invocation] {
      return queue_simulate_command(invocation.queue_simulate, invocation.options);
    };
  });
  add_serve(queue, invocation);
  add_submit(queue, invocation);
  add_views(queue, invocation);
  add_simulate(queue, invocation);
}

}  // namespace starling
