#include "starling/launch/remote_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "starling/net/address.h"

namespace starling {
namespace {

bool is_executable(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string find_program(const std::string& name, const std::vector<std::string>& environment) {
  if (name.find('/') != std::string::npos && is_executable(name)) return name;
  if (!name.empty() && name.find('/') == std::string::npos) {
    std::string_view path;
    for (const std::string& entry : environment) {
      if (entry.starts_with("PATH=")) path = std::string_view(entry).substr(5);
    }
    while (!path.empty()) {
      const size_t colon = path.find(':');
      const std::string_view folder = path.substr(0, colon);
      const std::string found = fmt::format("{}/{}", folder.empty() ? "." : folder, name);
      if (is_executable(found)) return found;
      path = colon == std::string_view::npos ? std::string_view() : path.substr(colon + 1);
    }
  }
  return {};
}

std::string program_to_reach(const std::string& name, const std::vector<std::string>& environment) {
  std::string path = find_program(name, environment);
  if (!path.empty()) return path;
  throw ConfigError(
      "launch.command",
      fmt::format(
          "\"{}\" is not a program on this host. Install it (ssh: apt-get install openssh-client), or "
          "name another one with --launch-command",
          name));
}

std::string program_to_start(const std::string& name, const std::vector<std::string>& environment) {
  std::string path = find_program(name, environment);
  if (!path.empty()) return path;
  throw ConfigError(
      "launch",
      fmt::format("\"{}\" is not a program on host {}. Install it, or give its path relative to the "
                  "folder in which the launcher was started",
                  name, host_name()));
}

bool is_this_host(const std::string& name) {
  const std::string own = host_name();
  return name == "localhost" || name == "127.0.0.1" || name == "::1" || name == own ||
         name == own.substr(0, own.find('.'));
}

std::vector<std::string> forwarded_environment(const char* const* environment) {
  static constexpr std::string_view kPrefixes[] = {"LD_LIBRARY_PATH=",
                                                   "NO_COLOR=",
                                                   "CI=",
                                                   "OMP_",
                                                   "GOMP_",
                                                   "KMP_",
                                                   "MKL_",
                                                   "DNNL_",
                                                   "ONEDNN_",
                                                   "TORCH_",
                                                   "ATEN_CPU_CAPABILITY=",
                                                   "UCX_"};
  std::vector<std::string> out;
  for (const char* const* entry = environment; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    if (std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                    [text](std::string_view prefix) { return text.starts_with(prefix); }))
      out.emplace_back(text);
  }
  return out;
}

void keep_words(std::deque<std::string>& words, const std::string& line, size_t most) {
  const size_t last = line.find_last_not_of(" \t\r");
  if (last == std::string::npos) return;
  words.push_back(line.substr(0, last + 1));
  if (words.size() > most) words.pop_front();
}

std::string last_words(const std::deque<std::string>& words) {
  return words.empty() ? std::string() : fmt::format(": {}", fmt::join(words, "; "));
}

std::string end_text(RankEnd end) {
  return fmt::format("{} {}", end.signalled ? "signal" : "exit status", end.number);
}

Error connection_error(const std::string& command, const std::string& program, const std::string& host,
                       RankEnd end, const std::deque<std::string>& words) {
  const bool no_program = !end.signalled && (end.number == 126 || end.number == 127);
  if (no_program) {
    return ConfigError(
        "launch.program",
        fmt::format("host {} cannot run {}{}. Install the same version there, or give its path with --set "
                    "launch.program=PATH",
                    host, program, last_words(words)));
  }
  return CommError(fmt::format(
      "host {} cannot be reached ({} ended with {}){}. Check the name, and that this command runs "
      "without asking for input: {} {} true",
      host, command.substr(0, command.find(' ')), end_text(end), last_words(words), command, host));
}

}  // namespace starling
