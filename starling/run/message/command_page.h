// What help texts, manual pages and shell completion know about a command. All of them read this description,
// which is taken from the options that the program parses.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace starling {

// What an option takes, so that a shell can complete it.
enum class ArgumentKind {
  kNone,        // the option is a switch
  kFree,        // any text
  kWords,       // one of OptionPage::words, or any text
  kFile,        // the path of a file
  kFolder,      // the path of a folder
  kKey,         // a key of the configuration
  kAssignment,  // KEY=VALUE
};

struct OptionPage {
  std::vector<std::string> names;  // "-n", "--ranks"; empty for a positional argument
  std::string placeholder;         // "N"; empty for a switch
  std::string text;
  std::string group;  // the heading above the option
  bool required = false;
  ArgumentKind argument = ArgumentKind::kNone;
  std::vector<std::string> words;
};

struct CommandPage {
  std::string name;     // with the commands above it: "starling config show"
  std::string group;    // the heading under which `starling --help` lists the command; empty: it is hidden
  std::string summary;  // one line
  std::string details;  // paragraphs, separated by newlines; may be empty
  std::vector<std::string> examples;
  bool runs_program = false;  // another program and its arguments follow the options
  bool of_program = false;    // the page of a user's program, whose own arguments follow "--"
  std::vector<OptionPage> positionals;
  std::vector<OptionPage> options;  // hidden ones excepted; options of one group are adjacent
  std::vector<CommandPage> commands;

  // The last word of `name`.
  std::string own_name() const;
};

// The group of options that every command takes.
constexpr const char* kGlobalGroup = "Options of every command";

// Describes a command and the commands below it. The page of `starling` has the global options, other pages
// do not.
CommandPage page_of(const CLI::App& app);

// Returns the full name of a command, for example "starling config show".
std::string full_name(const CLI::App& app);

// Returns `root` and the pages below it in order, hidden commands excepted.
std::vector<const CommandPage*> all_pages(const CommandPage& root);

}  // namespace starling
