// Help that fits the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace starling {

// CLI11's layout with descriptions broken at spaces, so that no line is longer than `columns`.
class WrappedHelp final : public CLI::Formatter {
 public:
  explicit WrappedHelp(int columns);
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_footer(const CLI::App* app) const override;

 private:
  int columns_;
};

// "starling config show": the command with those above it.
std::string full_name(const CLI::App& app);
std::string help_of(const CLI::App& app);

}  // namespace starling
