#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"

namespace starling {
namespace {

constexpr const char* kWhere = "Run folder, or the folder of one checkpoint";

void add_path(CLI::App& command, const char* name, std::string& path, const char* text) {
  command.add_option(name, path, text)->required()->type_name("");
}

}  // namespace

void add_ckpt_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& ckpt = add_command(app, invocation,
                               {.name = "ckpt",
                                .group = kTrainGroup,
                                .summary = "List, verify, compare and export checkpoints",
                                .examples = {"starling ckpt verify runs/my-run"}},
                               nullptr);
  ckpt.require_subcommand(0, 1);
  const auto sub = [&](const char* name, const char* summary, const char* details, const char* example,
                       std::function<int()> action) -> CLI::App& {
    return add_command(
        ckpt, invocation,
        {.name = name, .group = "Commands", .summary = summary, .details = details, .examples = {example}},
        std::move(action));
  };
  CLI::App& ls = sub("ls", "List the checkpoints of a run",
                     "Compares the sizes of the files with the manifest.", "starling ckpt ls runs/my-run",
                     [&invocation] { return ckpt_ls_command(invocation.run_dir, invocation.options); });
  add_path(ls, "PATH", invocation.run_dir, kWhere);
  CLI::App& verify =
      sub("verify", "Read checkpoints and compare them with their hashes",
          "Ends with status 5 if a checkpoint is not whole.", "starling ckpt verify runs/my-run",
          [&invocation] { return ckpt_verify_command(invocation.run_dir, invocation.options); });
  add_path(verify, "PATH", invocation.run_dir, kWhere);
  CLI::App& diff =
      sub("diff", "Compare the tensors of two checkpoints",
          "A path is a run folder (its newest whole checkpoint), the folder of a checkpoint, or a file of "
          "weights. Ends with status 1 if a tensor differs. Of a file, only the model is compared.",
          "starling ckpt diff runs/a runs/b", [&invocation] {
            return ckpt_diff_command(invocation.run_dir, invocation.other_dir, invocation.options);
          });
  add_path(diff, "A", invocation.run_dir, "The first checkpoint");
  add_path(diff, "B", invocation.other_dir, "The second checkpoint");
  CLI::App& exported =
      sub("export", "Write the model of a checkpoint to one file",
          "The ending of FILE decides the format: .safetensors, or .pt, which torch.load reads.",
          "starling ckpt export runs/my-run model.safetensors", [&invocation] {
            return ckpt_export_command(invocation.run_dir, invocation.file, invocation.force,
                                       invocation.averaged, invocation.options);
          });
  add_path(exported, "PATH", invocation.run_dir, kWhere);
  add_path(exported, "FILE", invocation.file, "File to write");
  exported.add_flag("--force", invocation.force, "Replace an existing file");
  exported.add_flag("--averaged", invocation.averaged,
                    "Write the averaged weights of optimizer.ema_decay in place of the trained ones");
}

}  // namespace starling
