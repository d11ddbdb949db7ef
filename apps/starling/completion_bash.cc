#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/starling/completion.h"
#include "apps/starling/completion_words.h"
#include "starling/spec/schema.h"

namespace starling {
namespace {

// This script looks at the words before the cursor. Bash cuts words at "=", so that "--exchange=ad" is three
// words.
constexpr const char* kBashBegin = R"(# bash completion for starling. Written by `starling completion bash`.
_starling() {
  local word="${COMP_WORDS[COMP_CWORD]}" option="${COMP_WORDS[COMP_CWORD-1]}"
  local command="" next skip="" commands="" flags="" i
  COMPREPLY=()
  if [[ "$word" == "=" ]]; then
    word=""
  elif [[ "$option" == "=" ]]; then
    option="${COMP_WORDS[COMP_CWORD-2]}"
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ -n "$skip" ]]; then skip=""; continue; fi
    if _starling_takes_argument "${COMP_WORDS[i]}"; then
      [[ "${COMP_WORDS[i+1]}" == "=" ]] || skip=1
      continue
    fi
    [[ "$command" == launch ]] && _starling_is_command "${COMP_WORDS[i]}" && command=""
    next="$command${command:+ }${COMP_WORDS[i]}"
    _starling_is_command "$next" && command="$next"
  done
  _starling_argument "$option" "$word" && return
  _starling_words
  if [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  elif [[ -n "$commands" ]]; then
    COMPREPLY=($(compgen -W "$commands" -- "$word"))
  else
    _starling_positional
  fi
}

# Adds no space behind a word that a value must follow.
_starling_offer() {
  COMPREPLY=($(compgen -W "$1" -- "$2"))
  [[ ${#COMPREPLY[@]} == 1 && "${COMPREPLY[0]}" == *[:=] ]] && compopt -o nospace 2>/dev/null
}

_starling_files() {
  compopt -o filenames 2>/dev/null
  COMPREPLY=($(compgen "$1" -- "$2"))
}

_starling_assignment() {
  compopt -o nospace 2>/dev/null
  COMPREPLY=($(compgen -W "$_starling_keys" -S = -- "$1"))
}

)";

// Returns the shell command that completes an argument.
std::string bash_completed(const OptionPage& option, const char* word) {
  switch (option.argument) {
    case ArgumentKind::kWords:
      return fmt::format("_starling_offer \"{}\" {}", fmt::join(option.words, " "), word);
    case ArgumentKind::kFile:
      return fmt::format("_starling_files -f {}", word);
    case ArgumentKind::kFolder:
      return fmt::format("_starling_files -d {}", word);
    case ArgumentKind::kKey:
      return fmt::format("COMPREPLY=($(compgen -W \"$_starling_keys\" -- {}))", word);
    case ArgumentKind::kAssignment:
      return fmt::format("_starling_assignment {}", word);
    case ArgumentKind::kFree:
    case ArgumentKind::kNone:
      return ":";
  }
  return ":";
}

std::string bash_pattern(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, "|"));
}

// Returns the shell function _starling_argument OPTION WORD. It completes the argument of an option, and
// fails if the option takes none.
std::string argument_function(const CommandPage& root) {
  std::string out = "_starling_argument() {\n  case \"$1\" in\n";
  for (const OptionPage* option : options_with_argument(root))
    out += fmt::format("    {}) {} ;;\n", bash_pattern(option->names), bash_completed(*option, "\"$2\""));
  // These cases complete the value of a key, behind --set KEY=.
  for (const SchemaEntry& entry : schema()) {
    const std::string_view words = entry.allowed.empty() ? entry.suggestions : entry.allowed;
    if (!words.empty()) out += fmt::format("    {}) _starling_offer \"{}\" \"$2\" ;;\n", entry.key, words);
  }
  return out + "    *) return 1 ;;\n  esac\n  return 0\n}\n\n";
}

std::string takes_argument_function(const CommandPage& root) {
  std::vector<std::string> names;
  for (const OptionPage* option : options_with_argument(root))
    names.insert(names.end(), option->names.begin(), option->names.end());
  return fmt::format(
      "_starling_takes_argument() {{\n  case \"$1\" in\n    {}) return 0 ;;\n  esac\n  return 1\n}}\n\n",
      bash_pattern(names));
}

std::string is_command_function(const CommandPage& root) {
  std::vector<std::string> names;
  for (const CommandPage* page : all_pages(root)) {
    if (const std::string words = command_words(*page); !words.empty()) names.push_back("\"" + words + "\"");
  }
  return fmt::format(
      "_starling_is_command() {{\n  case \"$1\" in\n    {}) return 0 ;;\n  esac\n  return 1\n}}\n\n",
      bash_pattern(names));
}

// Returns the shell function _starling_words, which sets the commands and flags that may follow $command.
std::string words_function(const CommandPage& root) {
  std::vector<std::string> global;
  for (const OptionPage& option : root.options)
    global.insert(global.end(), option.names.begin(), option.names.end());
  std::string out =
      fmt::format("_starling_words() {{\n  flags=\"{}\"\n  case \"$command\" in\n", fmt::join(global, " "));
  for (const CommandPage* page : all_pages(root)) {
    std::vector<std::string> commands, flags;
    for (const CommandPage& command : page->commands) {
      if (!command.group.empty()) commands.push_back(command.own_name());
    }
    if (page != &root) {
      for (const OptionPage& option : page->options)
        flags.insert(flags.end(), option.names.begin(), option.names.end());
    }
    if (commands.empty() && flags.empty()) continue;
    out += fmt::format("    \"{}\") commands=\"{}\"; flags+=\" {}\" ;;\n", command_words(*page),
                       fmt::join(commands, " "), fmt::join(flags, " "));
  }
  return out + "  esac\n}\n\n";
}

std::string positional_function(const CommandPage& root) {
  std::string out = "_starling_positional() {\n  case \"$command\" in\n";
  for (const CommandPage* page : all_pages(root)) {
    if (page->runs_program) {
      out += fmt::format(
          "    \"{}\") COMPREPLY=($(compgen -W \"$(command=\"\"; _starling_words; echo $commands)\" "
          "-- \"$word\") $(compgen -c -- \"$word\")) ;;\n",
          command_words(*page));
    } else if (!page->positionals.empty()) {
      out += fmt::format("    \"{}\") {} ;;\n", command_words(*page),
                         bash_completed(page->positionals.front(), "\"$word\""));
    }
  }
  return out + "  esac\n}\n\n";
}

}  // namespace

std::string bash_completion(const CommandPage& root) {
  std::vector<std::string_view> keys;
  for (const SchemaEntry& entry : schema()) keys.push_back(entry.key);
  return kBashBegin + argument_function(root) + takes_argument_function(root) + is_command_function(root) +
         words_function(root) + positional_function(root) +
         fmt::format("_starling_keys=\"{}\"\n\ncomplete -F _starling starling\n", fmt::join(keys, " "));
}

}  // namespace starling
