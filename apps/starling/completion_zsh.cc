#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/starling/completion.h"
#include "apps/starling/completion_words.h"
#include "starling/spec/schema.h"

namespace starling {
namespace {

// Escapes text between single quotes in a specification of _arguments, where brackets and colons have a
// meaning.
std::string zsh_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else if (c == '[' || c == ']' || c == ':' || c == '\\') {
      out += std::string("\\") + c;
    } else {
      out += c;
    }
  }
  return out;
}

// Returns ":message:action": the name of an argument, and what completes it.
std::string zsh_completed(const OptionPage& option) {
  const std::string message = zsh_escaped(option.placeholder);
  switch (option.argument) {
    case ArgumentKind::kNone:
      return "";
    case ArgumentKind::kWords:
      return fmt::format(":{}:({})", message, fmt::join(option.words, " "));
    case ArgumentKind::kFile:
      return fmt::format(":{}:_files", message);
    case ArgumentKind::kFolder:
      return fmt::format(":{}:_files -/", message);
    case ArgumentKind::kKey:
      return fmt::format(":{}:_starling_keys", message);
    case ArgumentKind::kAssignment:
      return fmt::format(":{}:_starling_keys -qS=", message);
    case ArgumentKind::kFree:
      return fmt::format(":{}: ", message);
  }
  return "";
}

std::string zsh_option_lines(const OptionPage& option) {
  std::string out;
  for (const std::string& name : option.names) {
    const bool takes = option.argument != ArgumentKind::kNone;
    const char* join = !takes ? "" : name.starts_with("--") ? "=" : "+";
    out += fmt::format("    '*{}{}[{}]{}' \\\n", name, join, zsh_escaped(first_sentence(option.text)),
                       zsh_completed(option));
  }
  return out;
}

std::string zsh_function_name(const CommandPage& page) {
  std::string name = "_" + page.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

// Writes the function that completes behind the words of one command.
std::string zsh_command_function(const CommandPage& root, const CommandPage& page) {
  std::string out = fmt::format("{}() {{\n", zsh_function_name(page));
  if (!page.commands.empty()) {
    out += "  local state line curcontext=\"$curcontext\"\n  local -a commands=(\n";
    for (const CommandPage& command : page.commands) {
      if (!command.group.empty())
        out += fmt::format("    '{}:{}'\n", command.own_name(), zsh_escaped(command.summary));
    }
    out += "  )\n";
  }
  out += "  _arguments -s -S -C \\\n";
  for (const OptionPage& option : root.options) out += zsh_option_lines(option);
  if (&page != &root) {
    for (const OptionPage& option : page.options) out += zsh_option_lines(option);
  }
  if (!page.commands.empty()) {
    out += fmt::format(
        "    '1:command:->command' \\\n    '*::argument:->argument'\n"
        "  case $state in\n    command) _describe command commands ;;\n"
        "    argument) (( $+functions[{0}_$line[1]] )) && {0}_$line[1] ;;\n  esac\n",
        zsh_function_name(page));
  } else if (page.runs_program) {
    out += "    '*::program:_normal'\n";
  } else if (!page.positionals.empty()) {
    out += fmt::format("    '1{}'\n", zsh_completed(page.positionals.front()));
  } else {
    out += "    '*: :'\n";
  }
  return out + "}\n\n";
}

}  // namespace

std::string zsh_completion(const CommandPage& root) {
  std::vector<std::string_view> keys;
  for (const SchemaEntry& entry : schema()) keys.push_back(entry.key);
  std::string out = fmt::format(
      "#compdef starling\n# zsh completion for starling. Written by `starling completion zsh`.\n\n"
      "_starling_keys() {{\n  local -a keys=({})\n  compadd \"$@\" -a keys\n}}\n\n",
      fmt::join(keys, " "));
  for (const CommandPage* page : all_pages(root)) out += zsh_command_function(root, *page);
  return out + "_starling \"$@\"\n";
}

}  // namespace starling
