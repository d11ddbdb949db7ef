#include "starling/commands/own_program.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "starling/base/error.h"
#include "starling/launch/rank_process.h"
#include "starling/net/deadline.h"

namespace starling {
namespace {

// Appends the available content of a pipe to `text`. Returns false at the pipe's end.
bool drain(const UniqueFd& fd, std::string& text) {
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      return false;
    } else if (errno == EAGAIN) {
      return true;
    }
  }
}

std::string last_line_with(const std::string& text, const std::string& what) {
  const size_t at = text.rfind(what);
  if (at == std::string::npos) return "";
  const size_t begin = text.rfind('\n', at) + 1;  // npos + 1 is 0
  return text.substr(begin, text.find('\n', at) - begin);
}

}  // namespace

std::string last_result_of(const std::vector<std::string>& arguments, std::chrono::seconds limit) {
  SpawnRequest request;
  request.program = "/proc/self/exe";
  request.argv = {"starling"};
  request.argv.insert(request.argv.end(), arguments.begin(), arguments.end());
  for (char** variable = ::environ; *variable != nullptr; ++variable)
    request.environment.emplace_back(*variable);
  ::sigemptyset(&request.signal_mask);
  const RankProcess child = spawn_rank(request);
  std::string out, err;
  const Deadline deadline = deadline_in(limit);
  bool out_open = true, err_open = true, late = false;
  while ((out_open || err_open) && !late) {
    pollfd polled[2] = {{out_open ? child.out.get() : -1, POLLIN, 0},
                        {err_open ? child.err.get() : -1, POLLIN, 0}};
    ::poll(polled, 2, poll_timeout(deadline));
    if (out_open) out_open = drain(child.out, out);
    if (err_open) err_open = drain(child.err, err);
    late = has_passed(deadline);
  }
  if (late) ::kill(-child.pid, SIGKILL);  // the launcher ends its ranks too
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string command = fmt::format("starling {}", arguments.empty() ? "" : arguments.front());
  if (late) throw TimeoutError(fmt::format("{} did not end within {} s", command, limit.count()));
  const std::string result = last_line_with(out, "{\"event\":\"result\"");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || result.empty()) {
    const std::string said = last_line_with(err, "error: ");
    throw Error(ErrorCode::kInternal,
                fmt::format("{} failed: {}", command, said.empty() ? "it printed no error" : said));
  }
  return result;
}

std::filesystem::path make_private_folder(const std::string& name) {
  std::error_code error;
  std::string path = std::filesystem::temp_directory_path(error) / (name + "-XXXXXX");
  if (error || ::mkdtemp(path.data()) == nullptr)
    throw ConfigError("TMPDIR", fmt::format("{} cannot be made: {}", path, std::strerror(errno)));
  return path;
}

}  // namespace starling
