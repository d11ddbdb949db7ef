#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"

namespace starling {
namespace {

FlagChoice data_flags() {
  return {.sections = {}, .keys = {"data.source", "train.seed"}};
}

void add_make_command(CLI::App& data, Invocation& invocation) {
  CLI::App& make =
      add_command(data, invocation,
                  {.name = "make",
                   .group = "Commands",
                   .summary = "Write generated data to a folder",
                   .details = "The files have the formats that idx:DIR and text:FILE read. Existing files "
                              "are replaced only with --force.",
                   .examples = {"starling data make --data digits --set data.samples=1000 digits"}},
                  [&invocation] {
                    return data_make_command(invocation.flags.read().spec, invocation.out_dir,
                                             invocation.force, invocation.options);
                  });
  make.add_option("DIR", invocation.out_dir, "Folder for the files. It is created if it does not exist")
      ->required()
      ->type_name("");
  make.add_flag("--force", invocation.force, "Replace existing files");
  invocation.flags.add_flags(make, data_flags());
}

void add_inspect_command(CLI::App& data, Invocation& invocation) {
  CLI::App& inspect =
      add_command(data, invocation,
                  {.name = "inspect",
                   .group = "Commands",
                   .summary = "Describe a data source",
                   .examples = {"starling data inspect idx:mnist"}},
                  [&invocation] {
                    Config config = invocation.flags.read();
                    if (!invocation.source.empty())
                      apply_flag(config, *find_entry("data.source"), "SOURCE", invocation.source);
                    return data_inspect_command(config.spec, invocation.options);
                  });
  inspect
      .add_option("SOURCE", invocation.source,
                  "Data source, in the form of --data. If it is left out, the configuration names the source")
      ->type_name("");
  invocation.flags.add_flags(inspect, data_flags());
}

int serve(const Invocation& invocation) {
  Config config = invocation.flags.read();
  if (!invocation.serve_interface.empty())
    apply_flag(config, *find_entry("comm.interface"), "--interface", invocation.serve_interface);
  return data_serve_command(config.spec, invocation.data_serve, invocation.options);
}

void add_serve_command(CLI::App& data, Invocation& invocation) {
  CLI::App& command = add_command(
      data, invocation,
      {.name = "serve",
       .group = "Commands",
       .summary = "Serve images or a text to the ranks of training jobs",
       .details = "The ranks read the samples with --data served:HOST:PORT,key=FILE.",
       .examples = {"starling data serve --data images:photos --interface eth0 --key-file data.key"}},
      [&invocation] { return serve(invocation); });
  add_number_option(command, "--port", invocation.data_serve.port, "Port to listen on. 0 selects a free port",
                    "P", 0, 65535);
  command
      .add_option("--interface", invocation.serve_interface,
                  "Network interface to listen on, by name or address [127.0.0.1]")
      ->type_name("NAME");
  command
      .add_option("--key-file", invocation.data_serve.key_file,
                  "File with the key that readers must prove. It is created if it does not exist")
      ->type_name("FILE");
  add_number_option(command, "--lease", invocation.data_serve.lease_s,
                    "Seconds after which a silent worker loses the batches that it holds", "S", 0.01, 1e6);
  FlagChoice flags = data_flags();
  flags.keys.push_back("comm.security");
  invocation.flags.add_flags(command, flags);
}

}  // namespace

void add_data_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& data = add_command(
      app, invocation,
      {.name = "data",
       .group = kInspectGroup,
       .summary = "Generate, describe and serve data",
       .examples = {"starling data make --data digits digits", "starling data inspect idx:digits"}},
      nullptr);
  data.require_subcommand(0, 1);
  add_make_command(data, invocation);
  add_inspect_command(data, invocation);
  add_serve_command(data, invocation);
}

}  // namespace starling
