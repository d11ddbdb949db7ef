#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"

namespace starling {
namespace {

int serve(const Invocation& invocation) {
  Config config = invocation.flags.read();
  if (!invocation.serve_interface.empty())
    apply_flag(config, *find_entry("comm.interface"), "--interface", invocation.serve_interface);
  return data_serve_command(config.spec, invocation.data_serve, invocation.options);
}

void add_serve_command(CLI::App& data, Invocation& invocation) {
  CLI::App& command = add_command(data, invocation, "serve", "Serve pictures to the ranks of training jobs",
                                  [&invocation] { return serve(invocation); });
  add_number_option(command, "--port", invocation.data_serve.port,
                    "The port to listen at; 0 takes a free one", "P", 0, 65535);
  command
      .add_option("--interface", invocation.serve_interface, "The interface, by name or address [127.0.0.1]")
      ->type_name("NAME");
  command
      .add_option("--key-file", invocation.data_serve.key_file,
                  "The key that readers must prove; made if it is not there")
      ->type_name("F");
  add_number_option(command, "--lease", invocation.data_serve.lease_s,
                    "A worker that is silent for longer loses the batches that it holds", "S", 0.01, 1e6);
  invocation.flags.add_flags(command);
}

}  // namespace

void add_tool_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& doctor = add_command(
      app, invocation, "doctor", "Examine this machine, with a fix for each problem", [&invocation] {
        return invocation.recorder.empty() ? doctor_command(invocation.options)
                                           : doctor_recorder_command(invocation.recorder, invocation.options);
      });
  doctor
      .add_option("--recorder", invocation.recorder,
                  "Say instead who waited for whom in the run of this folder")
      ->type_name("DIR");

  add_command(app, invocation, "strategies", "List the ways in which ranks can train together",
              [&invocation] { return strategies_command(invocation.options); });

  CLI::App& data = add_command(app, invocation, "data", "Make and inspect data", nullptr);
  data.require_subcommand(0, 1);
  CLI::App& make = add_command(data, invocation, "make", "Write generated data to a folder", [&invocation] {
    return data_make_command(invocation.flags.read().spec, invocation.out_dir, invocation.options);
  });
  make.add_option("DIR", invocation.out_dir, "The folder; made if it is not there")
      ->required()
      ->type_name("");
  invocation.flags.add_flags(make);
  CLI::App& inspect = add_command(data, invocation, "inspect", "Describe a data source", [&invocation] {
    Config config = invocation.flags.read();
    if (!invocation.source.empty())
      apply_flag(config, *find_entry("data.source"), "SOURCE", invocation.source);
    return data_inspect_command(config.spec, invocation.options);
  });
  inspect.add_option("SOURCE", invocation.source, "As data.source; without it, what the configuration names")
      ->type_name("");
  invocation.flags.add_flags(inspect);
  add_serve_command(data, invocation);
}

}  // namespace starling
