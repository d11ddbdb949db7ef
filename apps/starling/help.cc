#include "apps/starling/help.h"

#include <sstream>

#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr int kNames = 34;  // the column where descriptions begin

}  // namespace

WrappedHelp::WrappedHelp(int columns) : columns_(columns) {
  column_width(kNames);
  label("SUBCOMMAND", "COMMAND");
}

// CLI11 itself indents what follows a newline.
std::string WrappedHelp::make_option_desc(const CLI::Option* option) const {
  return wrapped(CLI::Formatter::make_option_desc(option), columns_ - kNames, 0, 0);
}

std::string WrappedHelp::make_subcommand(const CLI::App* command) const {
  std::ostringstream out;
  CLI::detail::format_help(out, command->get_display_name(true),
                           wrapped(command->get_description(), columns_ - kNames, 0, 0), kNames);
  return out.str();
}

std::string WrappedHelp::make_footer(const CLI::App* app) const {
  return app->get_footer().empty() ? "" : wrapped(app->get_footer(), columns_, 0, 0) + "\n";
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() ? full_name(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

std::string help_of(const CLI::App& app) {
  std::string text = app.help(app.get_parent() ? full_name(*app.get_parent()) : "");
  for (size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;) text.erase(at, 1);
  return text;
}

}  // namespace starling
