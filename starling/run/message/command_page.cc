#include "starling/run/message/command_page.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "starling/spec/schema.h"

namespace starling {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Returns the words among the alternatives of a placeholder: "auto" and "never" of "auto|never|PATH".
std::vector<std::string> words_in(const std::string& placeholder) {
  std::vector<std::string> words;
  for (std::string& word : split(placeholder, '|')) {
    const bool plain = std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-';
    });
    if (plain) words.push_back(std::move(word));
  }
  return words;
}

// Returns what a shell offers for an argument. The placeholder decides, unless the schema allows only certain
// words.
void set_argument(OptionPage& option) {
  const std::string& shown = option.placeholder;
  if (shown.empty()) return;
  const SchemaEntry* entry = option.names.empty() ? nullptr : find_flag(option.names.back());
  if (entry) option.words = split_words(entry->allowed.empty() ? entry->suggestions : entry->allowed);
  if (option.words.empty() && shown == "MODEL") option.words = split_words(find_entry("model.name")->allowed);
  if (option.words.empty()) option.words = words_in(shown);
  option.argument = !option.words.empty()       ? ArgumentKind::kWords
                    : shown.starts_with("FILE") ? ArgumentKind::kFile
                    : shown == "RATINGS"        ? ArgumentKind::kFile
                    : shown == "DIR"            ? ArgumentKind::kFolder
                    : shown == "KEY"            ? ArgumentKind::kKey
                    : shown == "KEY=VALUE"      ? ArgumentKind::kAssignment
                                                : ArgumentKind::kFree;
}

OptionPage option_page(const CLI::Option& option) {
  OptionPage page;
  if (option.get_positional()) {
    page.placeholder = option.get_type_name().empty() ? option.get_name() : option.get_type_name();
  } else {
    for (const std::string& name : option.get_snames()) page.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) page.names.push_back("--" + name);
    if (option.get_items_expected_max() > 0) page.placeholder = option.get_type_name();
  }
  page.text = option.get_description();
  page.group = option.get_group();
  page.required = option.get_required();
  set_argument(page);
  return page;
}

// Returns the position of a group among the headings of a page. A command's own options come first.
size_t rank_of(const std::string& group) {
  for (size_t i = 0; i < kSections.size(); ++i) {
    if (group == title_of(kSections[i])) return i + 1;
  }
  return group == kGlobalGroup ? kSections.size() + 1 : 0;
}

void add_options(CommandPage& page, const CLI::App& app) {
  const bool is_root = app.get_parent() == nullptr;
  for (const CLI::Option* option : app.get_options()) {
    const bool is_help = option->check_lname("help");
    if (option->get_positional()) {
      page.positionals.push_back(option_page(*option));
    } else if (!option->get_group().empty() &&
               (is_root || (!is_help && option->get_group() != kGlobalGroup))) {
      page.options.push_back(option_page(*option));
    }
  }
  std::stable_sort(page.options.begin(), page.options.end(), [](const OptionPage& a, const OptionPage& b) {
    return rank_of(a.group) < rank_of(b.group);
  });
}

void append_pages(std::vector<const CommandPage*>& pages, const CommandPage& page) {
  pages.push_back(&page);
  for (const CommandPage& command : page.commands) {
    if (!command.group.empty()) append_pages(pages, command);
  }
}

}  // namespace

std::string CommandPage::own_name() const {
  return name.substr(name.rfind(' ') + 1);  // npos + 1 is 0
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() ? full_name(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

CommandPage page_of(const CLI::App& app) {
  CommandPage page;
  page.name = full_name(app);
  page.group = app.get_group();
  const std::string description = app.get_description();
  const size_t end = std::min(description.find('\n'), description.size());
  page.summary = description.substr(0, end);
  page.details = description.substr(std::min(end + 1, description.size()));
  page.examples = split(app.get_footer(), '\n');
  page.runs_program = app.get_prefix_command();
  add_options(page, app);
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    page.commands.push_back(page_of(*command));
  }
  return page;
}

std::vector<const CommandPage*> all_pages(const CommandPage& root) {
  std::vector<const CommandPage*> pages;
  append_pages(pages, root);
  return pages;
}

}  // namespace starling
