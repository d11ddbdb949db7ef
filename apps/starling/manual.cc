#include "apps/starling/manual.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/starling/version_text.h"
#include "starling/run/message/help.h"
#include "starling/spec/schema.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr int kSourceColumns = 72;

// Escapes text for troff. Backquotes become bold type.
std::string roff(const std::string& text) {
  std::string out;
  bool bold = false;
  for (const char c : text) {
    if (c == '`') {
      out += (bold = !bold) ? "\\fB" : "\\fR";
    } else if (c == '\\') {
      out += "\\e";
    } else if (c == '"') {
      out += "\\(dq";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += std::string("\\&") + c;
    } else {
      out += c;
    }
  }
  return out;
}

// Returns a paragraph with short source lines.
std::string prose(const std::string& text) {
  return roff(wrapped(text, kSourceColumns, 0, 0));
}

std::string with_period(const std::string& text) {
  const size_t bracket = text.ends_with(']') ? text.rfind(" [") : std::string::npos;
  if (bracket == std::string::npos) return text.ends_with('.') ? text : text + ".";
  const std::string value = text.substr(bracket + 2, text.size() - bracket - 3);
  return fmt::format("{}. Default: {}.", text.substr(0, bracket), value);
}

std::string roff_paragraphs(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += fmt::format("{}{}\n", begin > 0 ? ".PP\n" : "", prose(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return out;
}

std::string roff_item(const std::string& name, const std::string& text) {
  return fmt::format(".TP\n.B {}\n{}\n", roff(name), prose(with_period(text)));
}

std::string options_section(const CommandPage& page) {
  std::string out, group;
  if (!page.positionals.empty()) out += ".SH ARGUMENTS\n";
  for (const OptionPage& option : page.positionals) out += roff_item(option.placeholder, option.text);
  if (!page.options.empty()) out += ".SH OPTIONS\n";
  for (const OptionPage& option : page.options) {
    if (option.group != group) out += fmt::format(".SS {}\n", roff(group = option.group));
    out += roff_item(option_names(option), option.text);
  }
  return out;
}

std::string commands_section(const CommandPage& page) {
  std::string out;
  std::vector<std::string> groups;
  for (const CommandPage& command : page.commands) {
    if (!command.group.empty() && std::find(groups.begin(), groups.end(), command.group) == groups.end())
      groups.push_back(command.group);
  }
  if (!groups.empty()) out += ".SH COMMANDS\n";
  for (const std::string& heading : groups) {
    if (groups.size() > 1) out += fmt::format(".SS {}\n", roff(heading));
    for (const CommandPage& command : page.commands) {
      if (command.group == heading)
        out += fmt::format(".TP\n.BR {} (1)\n{}\n", roff(manual_name(command)), prose(command.summary + "."));
    }
  }
  return out;
}

// Returns the section about the keys that a command reads and that have no flag. --set sets these keys.
std::string keys_section(const CommandPage& page) {
  if (page.runs_program) return "";
  std::string out;
  for (const Section section : kSections) {
    const bool shown = std::any_of(page.options.begin(), page.options.end(), [&](const OptionPage& option) {
      return option.group == title_of(section);
    });
    if (!shown) continue;
    for (const SchemaEntry& entry : schema()) {
      if (entry.section != section || !entry.flags.empty()) continue;
      const std::string value = to_toml(default_of(entry));
      out += fmt::format(".TP\n.B {}\n{}\n", roff(fmt::format("{} = {}", entry.key, value)),
                         prose(std::string(entry.doc)));
    }
  }
  return out.empty()
             ? ""
             : ".SH CONFIGURATION KEYS WITHOUT A FLAG\nThese keys are set with\n.B \\-\\-set "
               "KEY=VALUE\nor in a file that\n.B \\-c\nnames. Each is shown with its default value.\n" +
                   out;
}

std::string root_sections() {
  const auto status = [](const char* number, const char* text) {
    return fmt::format(".TP\n.B {}\n{}\n", number, prose(text));
  };
  return ".SH EXIT STATUS\n" + status("0", "Success.") +
         status(
             "1",
             "A check failed, for example a tolerance of `starling verify`, or an internal error occurred.") +
         status("2", "The command line or the configuration is wrong.") + status("3", "The data is wrong.") +
         status("4", "Communication failed: a rank or a host was lost, or a wait exceeded its timeout.") +
         status("5", "A checkpoint cannot be read or written.") +
         status("6", "The loss or a weight became infinite or not a number.") +
         status("129, 130, 143", "SIGHUP, SIGINT or SIGTERM interrupted the run.");
}

std::string see_also(const CommandPage& page, const CommandPage& root) {
  std::vector<std::string> names;
  const size_t end = page.name.rfind(' ');
  for (const CommandPage* other : all_pages(root)) {
    if (end != std::string::npos && other->name == page.name.substr(0, end))
      names.push_back(fmt::format(".BR {} (1)", roff(manual_name(*other))));
  }
  if (&page != &root && page.name.find(' ') != page.name.rfind(' '))
    names.insert(names.begin(), fmt::format(".BR {} (1)", roff(manual_name(root))));
  return names.empty() ? "" : fmt::format(".SH SEE ALSO\n{}\n", fmt::join(names, ",\n"));
}

}  // namespace

std::string manual_name(const CommandPage& page) {
  std::string name = page.name;
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string manual_page(const CommandPage& page, const CommandPage& root) {
  const std::string name = manual_name(page);
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string out =
      fmt::format(".\\\" Written by `starling manual`.\n.TH {} 1 \"{}\" \"starling {}\" \"Starling\"\n.nh\n",
                  roff(upper), build_date(), build_version());
  out += fmt::format(".SH NAME\n{} \\-\n{}\n", roff(name), prose(page.summary));
  out += fmt::format(".SH SYNOPSIS\n.B {}\n", roff(usage_of(page)));
  if (!page.details.empty()) out += ".SH DESCRIPTION\n" + roff_paragraphs(page.details);
  out += commands_section(page) + options_section(page) + keys_section(page);
  if (&page == &root) out += root_sections();
  if (!page.examples.empty()) out += ".SH EXAMPLES\n.nf\n";
  for (const std::string& example : page.examples) out += roff(example) + "\n";
  if (!page.examples.empty()) out += ".fi\n";
  return out + see_also(page, root);
}

}  // namespace starling
