#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/starling/completion.h"
#include "apps/starling/invocation.h"
#include "apps/starling/manual.h"
#include "starling/base/error.h"
#include "starling/run/message/command_page.h"
#include "starling/run/message/dry_run.h"
#include "starling/run/message/exit_status.h"
#include "starling/telemetry/output.h"

namespace starling {
namespace {

std::string completion_script(const CommandPage& root, const std::string& shell) {
  if (shell == "bash") return bash_completion(root);
  if (shell == "zsh") return zsh_completion(root);
  if (shell == "fish") return fish_completion(root);
  throw ConfigError("starling completion", fmt::format("\"{}\" is unknown: use bash, zsh or fish", shell));
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw ConfigError(path.string(), "the file cannot be written");
}

// Returns what `make install` puts below share/, by path: manual pages and completion scripts.
std::map<std::filesystem::path, std::string> share_files(const CommandPage& root) {
  std::map<std::filesystem::path, std::string> files;
  for (const CommandPage* page : all_pages(root))
    files["man/man1/" + manual_name(*page) + ".1"] = manual_page(*page, root);
  files["bash-completion/completions/starling"] = bash_completion(root);
  files["zsh/site-functions/_starling"] = zsh_completion(root);
  files["fish/vendor_completions.d/starling.fish"] = fish_completion(root);
  return files;
}

int write_manual(const CommandPage& root, const std::filesystem::path& share, const CommandOptions& options) {
  const auto files = share_files(root);
  if (options.dry_run) {
    print_dry_run(fmt::format("would write {} files below {}", files.size(), share.string()), options.json);
    return kExitOk;
  }
  for (const auto& [path, text] : files) write_file(share / path, text);
  if (options.json)
    print_line(
        nlohmann::ordered_json{{"event", "result"}, {"dir", share.string()}, {"files", files.size()}}.dump(
            -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));  // a path may be no UTF-8
  return kExitOk;
}

// Prints the help of the command that the words name: "config", "show". Errors: ConfigError.
int help(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* command = &root;
  for (const std::string& word : words) {
    const auto found = command->get_subcommands(
        [&word](const CLI::App* candidate) { return candidate->get_name() == word; });
    if (found.empty()) throw unknown_command(*command, word);
    command = found.front();
  }
  print_help(*command);
  return kExitOk;
}

}  // namespace

void add_shell_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& described = add_command(app, invocation,
                                    {.name = "help",
                                     .group = "",
                                     .summary = "Describe a command, as --help does",
                                     .examples = {"starling help train", "starling help config show"}},
                                    [&app, &invocation] { return help(app, invocation.command); });
  described.add_option("COMMAND", invocation.command, "The command and, below it, a command of its own")
      ->type_name("");
  CLI::App& completion =
      add_command(app, invocation,
                  {.name = "completion",
                   .group = kMachineGroup,
                   .summary = "Print a completion script for bash, zsh or fish",
                   .details = "The script completes commands, options, words and keys of the configuration.",
                   .examples = {"source <(starling completion bash)",
                                "starling completion zsh >\"${fpath[1]}/_starling\"",
                                "starling completion fish >~/.config/fish/completions/starling.fish"}},
                  [&app, &invocation] {
                    fmt::print("{}", completion_script(page_of(app), invocation.shell));
                    return kExitOk;
                  });
  completion.add_option("SHELL", invocation.shell, "The shell that reads the script")
      ->required()
      ->type_name("bash|zsh|fish");
  CLI::App& manual = add_command(
      app, invocation,
      {.name = "manual", .group = "", .summary = "Write manual pages and completion scripts below a folder"},
      [&app, &invocation] { return write_manual(page_of(app), invocation.manual_dir, invocation.options); });
  manual.add_option("DIR", invocation.manual_dir, "Folder, laid out like share/")->required()->type_name("");
}

}  // namespace starling
