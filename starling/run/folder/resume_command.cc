#include "starling/run/folder/resume_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "starling/launch/remote_command.h"

namespace starling {
namespace {

// Removes the flag `name` and its value, in both of their forms.
void remove_flag(std::vector<std::string>& words, std::string_view name) {
  for (size_t i = 0; i < words.size();) {
    const bool alone = words[i] == name;
    const bool joined = words[i].starts_with(name) && words[i].substr(name.size()).starts_with('=');
    const size_t count = alone ? std::min<size_t>(2, words.size() - i) : joined ? 1 : 0;
    words.erase(words.begin() + static_cast<ptrdiff_t>(i), words.begin() + static_cast<ptrdiff_t>(i + count));
    i += count == 0 ? 1 : 0;
  }
}

// Returns true if a command line says how many ranks to start.
bool names_ranks(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("-n") || word.starts_with("--ranks") || word.starts_with("--host") ||
           word.find("train.ranks=") != std::string::npos;
  });
}

// Quotes a word only if a shell would change it.
std::string as_typed(const std::string& word) {
  static constexpr std::string_view kPlain = "@%_+=:,./-";
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kPlain.find(c) != std::string_view::npos;
  });
  return plain ? word : shell_quoted(word);
}

}  // namespace

ResumeHint resume_hint(const std::vector<std::string>& argv, const RunSpec& spec,
                       const Environment& environment, const std::string& run_dir) {
  const auto dashes = std::find(argv.begin(), argv.end(), "--");
  std::vector<std::string> words(argv.begin(), dashes);
  const ProcessOrigin origin = environment.identity.origin;
  if (origin == ProcessOrigin::kLauncher && spec.launch.hosts.empty() && spec.launch.hostfile.empty() &&
      !names_ranks(words))
    words.insert(words.end(), {"-n", std::to_string(spec.train.ranks)});
  remove_flag(words, "--run-dir");
  remove_flag(words, "--resume");
  words.insert(words.end(), {"--run-dir", run_dir});
  if (spec.run.resume != "auto") words.insert(words.end(), {"--resume", "auto"});
  words.insert(words.end(), dashes, argv.end());
  std::transform(words.begin(), words.end(), words.begin(), as_typed);
  ResumeHint hint;
  hint.command = fmt::format("{}", fmt::join(words, " "));
  if (origin != ProcessOrigin::kAlone && origin != ProcessOrigin::kLauncher) hint.launcher = name_of(origin);
  return hint;
}

}  // namespace starling
