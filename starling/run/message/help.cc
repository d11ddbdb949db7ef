#include "starling/run/message/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "starling/spec/section.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr int kTexts = 28;  // the column where descriptions begin
constexpr int kWidest = 110;

// Writes one entry of a list. The name begins at column 2. The text follows it or, after a long name, begins
// on the next line.
std::string list_entry(const std::string& name, const std::string& text, int texts, int columns) {
  std::string out = "  " + name;
  const int width = display_width(out);
  out += width + 2 <= texts ? std::string(static_cast<size_t>(texts - width), ' ')
                            : "\n" + std::string(static_cast<size_t>(texts), ' ');
  return out + wrapped(text, columns, texts, texts) + "\n";
}

std::string wrapped_paragraphs(const std::string& text, int columns) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += wrapped(text.substr(begin, end - begin), columns, 0, 0) + "\n";
    begin = end + 1;
  }
  return out;
}

// Writes the commands below this one under their headings. The headings are in the order in which they first
// occur.
std::string command_lists(const CommandPage& page, int columns) {
  std::vector<std::string> groups;
  size_t longest = 0;
  for (const CommandPage& command : page.commands) {
    if (command.group.empty()) continue;
    longest = std::max(longest, command.own_name().size());
    if (std::find(groups.begin(), groups.end(), command.group) == groups.end())
      groups.push_back(command.group);
  }
  std::string out;
  for (const std::string& group : groups) {
    out += fmt::format("\n{}:\n", group);
    for (const CommandPage& command : page.commands) {
      if (command.group == group)
        out += list_entry(command.own_name(), command.summary, static_cast<int>(longest) + 4, columns);
    }
  }
  return out;
}

std::string option_lists(const CommandPage& page, int columns) {
  std::string out, group;
  for (const OptionPage& option : page.positionals) {
    if (group.empty()) out += fmt::format("\n{}:\n", group = "Arguments");
    out += list_entry(option.placeholder, option.text, kTexts, columns);
  }
  group.clear();
  for (const OptionPage& option : page.options) {
    if (option.group != group) out += fmt::format("\n{}:\n", group = option.group);
    out += list_entry(option_names(option), option.text, kTexts, columns);
  }
  return out;
}

std::string closing(const CommandPage& page, int columns) {
  const bool is_root = page.name.find(' ') == std::string::npos;
  const auto line = [columns](const char* text) { return "\n" + wrapped(text, columns, 0, 0) + "\n"; };
  if (page.of_program) {
    return line(
        "Brackets hold default values. An optimizer, an exchange or a codec may bring other defaults. "
        "Arguments of the program's own follow --. `starling config explain KEY` describes a key.");
  }
  if (is_root) {
    return line("`starling COMMAND --help` describes a command, `config explain KEY` a key.");
  }
  std::string out;
  const auto has_value = [](const OptionPage& option) {
    return option.group == title_of(Section::kModel) && option.text.ends_with(']');
  };
  if (std::any_of(page.options.begin(), page.options.end(), has_value)) {
    out += line(
        "Brackets hold default values. A model, an optimizer, an exchange or a codec may bring other "
        "defaults; `starling config show` prints the values of a run.");
  }
  return out +
         line(
             "Every command also takes -c FILE, --set KEY=VALUE, --json, --dry-run, -q, -v and --color. "
             "`starling --help` describes them.");
}

}  // namespace

std::string usage_of(const CommandPage& page) {
  std::string usage = page.name;
  if (!page.commands.empty()) return usage + " COMMAND [OPTIONS]";
  usage += " [OPTIONS]";
  for (const OptionPage& option : page.positionals)
    usage += option.required ? " " + option.placeholder : " [" + option.placeholder + "]";
  if (page.of_program) return usage + " [-- ARGUMENT…]";
  return page.runs_program ? usage + " PROGRAM [ARGUMENT…]" : usage;
}

std::string option_names(const OptionPage& option) {
  std::string text = fmt::format("{}", fmt::join(option.names, ", "));
  return option.placeholder.empty() ? text : text + " " + option.placeholder;
}

std::string help_text(const CommandPage& page, int columns) {
  const int width = std::min(columns, kWidest);
  std::string out = wrapped(page.summary + ".", width, 0, 0) + "\n";
  out += fmt::format("\nUsage: {}\n", usage_of(page));
  if (!page.details.empty()) out += "\n" + wrapped_paragraphs(page.details, width);
  out += command_lists(page, width);
  if (!page.examples.empty()) {
    out += page.examples.size() > 1 ? "\nExamples:\n" : "\nExample:\n";
    for (const std::string& example : page.examples) out += "  " + example + "\n";
  }
  return out + option_lists(page, width) + closing(page, width);
}

}  // namespace starling
