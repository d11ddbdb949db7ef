#include "starling/spec/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "starling/base/suggest.h"
#include "starling/spec/extensions.h"
#include "starling/spec/recipes.h"

namespace starling {
namespace {

// Returns "--ranks" for "-n,--ranks".
std::string long_name(const SchemaEntry& entry) {
  return std::string(entry.flags.substr(entry.flags.rfind("--")));
}

// Returns what the help of a key says about the rows of the program.
std::string added_text(const SchemaEntry& entry, const Extensions& added) {
  std::string text;
  if (entry.key == "data.source") {
    for (const auto& row : added.sources())
      text += (text.empty() ? ". This program adds " : ", ") + row->usage;
  } else if (entry.key == "exchange.codec" || entry.key == "exchange.pull_codec") {
    for (const auto& row : added.codecs()) {
      if (entry.key == "exchange.codec" || row->traits.weights) text += fmt::format(", {}", row->traits.name);
    }
  }
  if (table_of(entry) == "exchange") {
    std::string readers;
    for (const auto& row : added.exchanges()) {
      if (row->traits.reads(leaf_of(entry)))
        readers += fmt::format("{}{}", readers.empty() ? "" : ", ", row->traits.name);
    }
    if (!readers.empty()) text += fmt::format(". {} of this program reads this key, too", readers);
  }
  return text;
}

// Returns the text that the command has for the key, or `usual`.
std::string_view text_of(const std::vector<std::pair<std::string_view, std::string_view>>& texts,
                         const SchemaEntry& entry, std::string_view usual) {
  for (const auto& [key, text] : texts)
    if (key == entry.key) return text;
  return usual;
}

// Returns "Meaning. One of WORDS [default]" for the help of a flag. The words are left out if the meaning
// names them all, and if the meaning is that of the command.
std::string help_line(const SchemaEntry& entry, const FlagChoice& choice) {
  const Extensions* added = choice.added;
  const std::string_view meaning = text_of(choice.meanings, entry, entry.doc);
  std::string text(meaning);
  const std::vector<std::string> words = allowed_words(entry, added);
  const bool own = meaning != entry.doc;
  const bool named = own || std::all_of(words.begin(), words.end(), [&](const std::string& word) {
                       return text.find(word) != std::string::npos;
                     });
  if (text.ends_with('.')) text.pop_back();
  if (!named)
    text +=
        fmt::format("{} {}", text.find(". ") == std::string::npos ? ":" : ". One of", fmt::join(words, ", "));
  if (added != nullptr) text += added_text(entry, *added);
  const Value value = default_of(entry);
  const auto* plain = std::get_if<std::string>(&value);
  std::string shown = plain ? *plain : to_toml(value);
  if (shown.ends_with(".0")) shown.resize(shown.size() - 2);
  shown = text_of(choice.defaults, entry, shown);
  return shown.empty() ? text : fmt::format("{} [{}]", text, shown);
}

bool shows(const FlagChoice& choice, const SchemaEntry& entry) {
  const auto names = [&entry](const std::vector<std::string_view>& keys) {
    return std::find(keys.begin(), keys.end(), entry.key) != keys.end();
  };
  const auto& sections = choice.sections;
  return names(choice.keys) || (!names(choice.left_out) &&
                                std::find(sections.begin(), sections.end(), entry.section) != sections.end());
}

}  // namespace

void ConfigFlags::add_sources(CLI::App& app) {
  const auto append_to = [](std::vector<std::string>& list) {
    return [&list](const CLI::results_t& values) {
      list.insert(list.end(), values.begin(), values.end());
      return true;
    };
  };
  app.add_option("-c,--config", append_to(files_), "Read a TOML file. Later files override earlier ones")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--set", append_to(sets_), "Set one key, for example --set train.seed=7")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void ConfigFlags::add_flags(CLI::App& app, const FlagChoice& choice) {
  for (const SchemaEntry& entry : schema()) {
    const bool shown = shows(choice, entry);
    if (entry.flags.empty() || (!shown && !choice.accept_others)) continue;
    // A flag of the command itself counts, such as --tune of `bench comm`.
    if (app.get_option_no_throw(std::string(entry.flags)) != nullptr) continue;
    if (type_of(entry) == ValueType::kBool) {
      app.add_flag_callback(
             std::string(entry.flags), [this, &entry] { flags_.emplace_back(&entry, "true"); },
             help_line(entry, choice))
          ->group(shown ? std::string(title_of(entry.section)) : "");
      continue;
    }
    app.add_option(
           std::string(entry.flags),
           [this, &entry](const CLI::results_t& values) {
             flags_.emplace_back(&entry, values.back());
             return true;
           },
           help_line(entry, choice))
        ->type_name(std::string(entry.placeholder))
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group(shown ? std::string(title_of(entry.section)) : "");
  }
}

namespace {

// train.steps overrides train.epochs. If the epochs come from a later source, such as a flag behind a file,
// the steps of the earlier source do not apply.
void let_later_length_win(Config& config) {
  const auto steps = config.origins.find("train.steps"), epochs = config.origins.find("train.epochs");
  if (steps == config.origins.end() || epochs == config.origins.end()) return;
  if (epochs->second.kind <= steps->second.kind) return;
  config.spec.train.steps = 0;
  config.origins.erase(steps);
}

}  // namespace

Config ConfigFlags::read(const std::vector<std::pair<std::string, std::string>>& code,
                         std::shared_ptr<const Extensions> added) const {
  Config config;
  config.spec.extensions = std::move(added);
  for (const auto& [key, text] : code) apply_code(config, key, text);
  return read_over(std::move(config));
}

Config ConfigFlags::read_over(Config config) const {
  for (const std::string& file : files_) apply_toml_file(config, file);
  for (const std::string& assignment : sets_) apply_set(config, assignment);
  for (const auto& [entry, text] : flags_) apply_flag(config, *entry, long_name(*entry), text);
  let_later_length_win(config);
  apply_recipes(config);
  return config;
}

void add_global_options(CLI::App& app, const std::string& group, ConfigFlags& flags, GlobalOptions& options) {
  app.option_defaults()->group(group);
  flags.add_sources(app);
  app.add_flag("--json", options.json, "Print JSON objects, one per line, on standard output");
  app.add_flag("--dry-run", options.dry_run, "Print what the command would do, without doing it");
  app.add_flag_function(
      "-q,--quiet", [&](int64_t count) { options.verbosity -= static_cast<int>(count); },
      "Print results and errors only");
  app.add_flag_function(
      "-v,--verbose", [&](int64_t count) { options.verbosity += static_cast<int>(count); },
      "Print more. -vv prints even more");
  app.add_option("--color", options.color, "auto: on a terminal unless NO_COLOR is set [auto]")
      ->type_name("auto|always|never")
      ->check(CLI::IsMember({"auto", "always", "never"}).description(""))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

std::string parse_error_in_words(const std::string& message) {
  // CLI11 writes "--lr: 1 required FLOAT missing".
  constexpr std::string_view kRequired = ": 1 required ", kMissing = " missing";
  const size_t cut = message.find(kRequired), type = cut + kRequired.size();
  const bool matches = message.starts_with('-') && cut != std::string::npos && message.ends_with(kMissing) &&
                       type < message.size() - kMissing.size() && message.find(' ') == cut + 1 &&
                       message.find(' ', type) == message.size() - kMissing.size();
  if (!matches) return message;
  return fmt::format("{} needs {}", message.substr(0, cut),
                     message.substr(type, message.size() - kMissing.size() - type));
}

void refuse_what_the_program_brings(const Config& config) {
  for (const auto& [key, origin] : config.origins) {
    const SchemaEntry* entry = find_entry(key);
    if (entry == nullptr || !is_given(config.origins, key) ||
        !program_brings(*entry, config.spec.extensions.get()))
      continue;
    const bool of_model = entry->section == Section::kModel;
    throw ConfigError(
        origin.where,
        fmt::format("{} does not apply, because this program brings its own {}: leave it out{}", key,
                    of_model ? "model" : "data",
                    of_model ? "" : ", or let the program call starling::Extensions::take_data()"));
  }
}

void require_data_source(const Config& config) {
  const Extensions* added = config.spec.extensions.get();
  if (added == nullptr || !added->takes_data() || is_given(config.origins, "data.source")) return;
  throw ConfigError("--data",
                    "is not given: this program trains on the data that --data names. Write for "
                    "example --data images:FOLDER, or --data digits for generated digits");
}

ProgramOptions::ProgramOptions(const std::string& name, std::shared_ptr<const Extensions> added)
    : added_(std::move(added)), app_(std::make_unique<CLI::App>("", name)) {
  CLI::App& app = *app_;
  app.allow_extras();
  app.set_help_flag();
  add_global_options(app, "Options", flags_, options_);
  app.set_help_flag("-h,--help", "Print the help text");
  app.set_version_flag("--version", "", "Print the version");
  FlagChoice shown;
  shown.sections = {Section::kOptimizer, Section::kTraining,  Section::kRanks, Section::kParallel,
                    Section::kNetwork,   Section::kEmulation, Section::kRun};
  shown.added = added_.get();
  const bool data = added_ != nullptr && added_->takes_data();
  if (data) shown.sections.insert(shown.sections.begin(), Section::kData);
  for (const SchemaEntry& entry : schema()) {
    const bool of_model = entry.section == Section::kModel, of_data = entry.section == Section::kData;
    if ((of_model || (of_data && !data)) && !program_brings(entry, added_.get()))
      shown.keys.push_back(entry.key);
  }
  flags_.add_flags(app, shown);
}

ProgramOptions::~ProgramOptions() = default;

ProgramLine ProgramOptions::parse(int argc, const char* const* argv,
                                  const std::vector<std::pair<std::string, std::string>>& code) {
  ProgramLine line;
  const char* const* const end = argv + argc;
  const char* const* const own =
      std::find_if(argv, end, [](const char* word) { return std::string_view(word) == "--"; });
  if (own != end) line.arguments.assign(own + 1, end);
  try {
    app_->parse(static_cast<int>(own - argv), argv);
  } catch (const CLI::CallForHelp&) {
    line.help = true;
    return line;
  } catch (const CLI::CallForVersion&) {
    line.version = true;
    return line;
  } catch (const CLI::ParseError& error) {
    throw ConfigError("command line", parse_error_in_words(error.what()));
  }
  if (const std::vector<std::string> extras = app_->remaining(); !extras.empty()) {
    throw unknown_argument(extras.front(),
                           {"--json", "--dry-run", "--quiet", "--verbose", "--color", "--help", "--version"},
                           true);
  }
  line.config = flags_.read(code, added_);
  line.options = options_;
  refuse_what_the_program_brings(line.config);
  require_data_source(line.config);
  return line;
}

namespace {

// Returns the flag that has the meaning of another program's flag, or "" if there is none.
std::string flag_called_elsewhere(std::string_view name) {
  // torchrun, mpiexec, horovodrun, and the usual arguments of training scripts.
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"--batch", "--global-batch"}, {"--batch-size", "--global-batch"}, {"--learning-rate", "--lr"},
      {"--np", "--ranks"},           {"--nproc-per-node", "--ranks"},    {"--nproc_per_node", "--ranks"},
      {"--world-size", "--ranks"},   {"--num-epochs", "--epochs"},       {"--max-steps", "--steps"}};
  for (const auto& [other, own] : kNames) {
    if (name == other) return std::string(own);
  }
  return "";
}

}  // namespace

ConfigError unknown_argument(const std::string& argument, std::vector<std::string> known, bool own) {
  const std::string name = argument.substr(0, argument.find('='));
  const std::string after = own ? ". Arguments of the program's own follow --" : "";
  if (!name.starts_with('-')) return ConfigError(argument, "unexpected argument" + after);
  known.insert(known.end(), {"--config", "--set"});
  for (const SchemaEntry& entry : schema()) {
    if (!entry.flags.empty()) known.push_back(long_name(entry));
  }
  if (std::find(known.begin(), known.end(), name) != known.end()) {
    return ConfigError(
        name,
        "this command does not take the flag. Put the flag after a command that takes it, as in "
        "starling train " +
            name);
  }
  std::string near = flag_called_elsewhere(name);
  if (near.empty()) near = nearest(name, known);
  return ConfigError(name,
                     (near.empty() ? "unknown flag. --help lists the flags, and --set key=value sets any key"
                                   : fmt::format("unknown flag: did you mean {}?", near)) +
                         (own && !near.empty() ? " Arguments of the program's own follow --" : after));
}

}  // namespace starling
