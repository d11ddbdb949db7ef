// Reads the options of a command line. The options are -c FILE, --set key=value, the flags of the schema, and
// those that do not belong to the configuration. The program `starling` and programs of users
// (starling::init) share this code.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/spec/config.h"

namespace CLI {
class App;
}

namespace starling {

// The flags that a command accepts, and those that its help shows.
struct FlagChoice {
  std::vector<Section> sections = {kSections.begin(), kSections.end()};  // flags of these sections are shown
  std::vector<std::string_view> keys = {};                               // flags of these keys are shown, too
  bool accept_others = true;                    // other flags of the schema are accepted but not shown
  const Extensions* added = nullptr;            // what the program adds, for the help text
  std::vector<std::string_view> left_out = {};  // flags of these keys are not shown, in spite of `sections`
  // Keys whose default of the command differs from that of the schema, with the text for the help.
  std::vector<std::pair<std::string_view, std::string_view>> defaults = {};
  // Keys that mean something narrower for the command than the schema says, with the meaning for the help.
  // The allowed words are not added to it.
  std::vector<std::pair<std::string_view, std::string_view>> meanings = {};
};

// ConfigFlags collects the configuration options of a command line while CLI11 parses it. It must outlive the
// apps that it was added to.
class ConfigFlags {
 public:
  ConfigFlags() = default;
  ConfigFlags(const ConfigFlags&) = delete;
  ConfigFlags& operator=(const ConfigFlags&) = delete;

  // Adds -c, --config FILE and --set key=value.
  void add_sources(CLI::App& app);
  // Adds the flags of the schema. A flag that is shown belongs to the CLI11 group that its section names. A
  // flag that the command has defined itself is not added.
  void add_flags(CLI::App& app, const FlagChoice& choice = {});
  // Reads the files and combines defaults, `code` (keys and values of a program), files, --set and flags.
  // `added` becomes RunSpec::extensions. Throws ConfigError.
  Config read(const std::vector<std::pair<std::string, std::string>>& code = {},
              std::shared_ptr<const Extensions> added = nullptr) const;
  // Combines `base`, files, --set and flags.
  Config read_over(Config base) const;
  // Returns the arguments of -c, in order.
  const std::vector<std::string>& files() const { return files_; }

 private:
  std::vector<std::string> files_;
  std::vector<std::string> sets_;
  std::vector<std::pair<const SchemaEntry*, std::string>> flags_;  // entry, text
};

// The options that every command of `starling` and every user's program take beside the configuration.
struct GlobalOptions {
  bool json = false;     // print one JSON object per line on standard output
  bool dry_run = false;  // show what would be done, and do not do it
  int verbosity = 0;     // -1: quiet; 1 and more: verbose
  // "auto", "always" or "never". run/ decides what auto means: color for a terminal without NO_COLOR.
  std::string color = "auto";
};

// Adds -c, --set and the options of GlobalOptions under the heading `group`. `flags` and `options` must
// outlive the app. The caller adds --help and --version.
void add_global_options(CLI::App& app, const std::string& group, ConfigFlags& flags, GlobalOptions& options);

// What the command line of a user's program asks for.
struct ProgramLine {
  Config config;
  GlobalOptions options;
  bool help = false;                   // --help is given. Nothing else but `arguments` is read then
  bool version = false;                // --version is given. Nothing else but `arguments` is read then
  std::vector<std::string> arguments;  // what follows the first "--", in order: the program's own arguments
};

// Throws ConfigError for a key that the user wrote and that does not apply to a program that brings its own
// model and data. The keys of data apply if the program's command line chooses the data
// (Extensions::takes_data).
void refuse_what_the_program_brings(const Config& config);

// Throws ConfigError if the command line chooses the data of this program, and neither the user nor the
// program has set data.source.
void require_data_source(const Config& config);

// The options of a user's program (starling::init): those of `starling train`, without the keys of models and
// data, which the program brings. A program whose command line chooses the data takes the keys of data.
class ProgramOptions {
 public:
  // `name` is the name of the program in the help text. `added` may be null.
  explicit ProgramOptions(const std::string& name, std::shared_ptr<const Extensions> added = nullptr);
  ~ProgramOptions();
  ProgramOptions(const ProgramOptions&) = delete;
  ProgramOptions& operator=(const ProgramOptions&) = delete;

  // Describes the options, for the help text.
  const CLI::App& app() const { return *app_; }
  // Parses a command line. Call it once. Throws ConfigError, for example for a flag that nobody knows; the
  // message then suggests a flag. A key that describes the model or the data of `starling train` is refused.
  // `code`: the keys and values that the program itself sets.
  ProgramLine parse(int argc, const char* const* argv,
                    const std::vector<std::pair<std::string, std::string>>& code = {});

 private:
  const std::shared_ptr<const Extensions> added_;
  ConfigFlags flags_;
  GlobalOptions options_;
  std::unique_ptr<CLI::App> app_;
};

// Returns the message of a parse error of CLI11, "--steps: 1 required N missing", in our words: "--steps
// needs N".
std::string parse_error_in_words(const std::string& message);

// Returns the error for an argument that no option matches. The message suggests the nearest flag of the
// configuration or of `known`. `own` says that the arguments belong to a user's program.
ConfigError unknown_argument(const std::string& argument, std::vector<std::string> known = {},
                             bool own = false);

}  // namespace starling
