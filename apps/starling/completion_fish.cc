#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/starling/completion.h"
#include "apps/starling/completion_words.h"
#include "starling/spec/schema.h"

namespace starling {
namespace {

std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "'";
}

// Returns the part of a `complete` command that determines what an argument may be.
std::string fish_completed(const OptionPage& option) {
  switch (option.argument) {
    case ArgumentKind::kNone:
      return "";
    case ArgumentKind::kWords:
      return fmt::format(" -x -a '{}'", fmt::join(option.words, " "));
    case ArgumentKind::kFile:
      return " -r -F";
    case ArgumentKind::kFolder:
      return " -x -a '(__fish_complete_directories)'";
    case ArgumentKind::kKey:
    case ArgumentKind::kAssignment:
      return fmt::format(" -x -a '(__starling_keys{})'", option.argument == ArgumentKind::kKey ? "" : " =");
    case ArgumentKind::kFree:
      return " -x";
  }
  return "";
}

// Returns the condition under which fish offers a command's options: all its words are on the command line.
std::string fish_condition(const CommandPage& page) {
  std::string words = command_words(page), out;
  for (size_t begin = 0; begin < words.size();) {
    const size_t end = std::min(words.find(' ', begin), words.size());
    out += fmt::format("{}__fish_seen_subcommand_from {}", out.empty() ? "" : "; and ",
                       words.substr(begin, end - begin));
    begin = end + 1;
  }
  return out.empty() ? "" : fmt::format(" -n '{}'", out);
}

std::string fish_option_line(const std::string& condition, const OptionPage& option) {
  std::string names;
  for (const std::string& name : option.names)
    names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  return fmt::format("complete -c starling{}{}{} -d {}\n", condition, names, fish_completed(option),
                     fish_quoted(first_sentence(option.text)));
}

// Writes the commands below `page`. fish offers them until one of them is named.
std::string fish_command_lines(const CommandPage& page) {
  std::vector<std::string> names;
  for (const CommandPage& command : page.commands) names.push_back(command.own_name());
  const std::string words = command_words(page);
  const std::string above = words.empty() ? "" : fmt::format("__fish_seen_subcommand_from {}; and ", words);
  std::string out;
  for (const CommandPage& command : page.commands) {
    if (command.group.empty()) continue;
    out += fmt::format("complete -c starling -n '{}not __fish_seen_subcommand_from {}' -a {} -d {}\n", above,
                       fmt::join(names, " "), command.own_name(), fish_quoted(command.summary));
  }
  return out;
}

}  // namespace

std::string fish_completion(const CommandPage& root) {
  std::vector<std::string_view> keys;
  for (const SchemaEntry& entry : schema()) keys.push_back(entry.key);
  std::string out = fmt::format(
      "# fish completion for starling. Written by `starling completion fish`.\n"
      "function __starling_keys\n  for key in {}\n    echo $key$argv[1]\n  end\nend\n\n"
      "complete -c starling -f\n",
      fmt::join(keys, " "));
  for (const CommandPage* page : all_pages(root)) {
    out += fish_command_lines(*page);
    const std::string when = fish_condition(*page);
    for (const OptionPage& option : page->options) out += fish_option_line(when, option);
    if (page->runs_program) {
      out += fmt::format("complete -c starling{} -x -a '(__fish_complete_command)'\n", when);
    } else if (!page->positionals.empty()) {
      out += fmt::format("complete -c starling{}{}\n", when, fish_completed(page->positionals.front()));
    }
  }
  return out;
}

}  // namespace starling
