#include "starling/launch/child_program.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <optional>

#include "starling/launch/line_reader.h"
#include "starling/launch/rank_process.h"
#include "starling/launch/signal_watch.h"

namespace starling {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);  // between SIGTERM and SIGKILL
constexpr size_t kErrorLines = 20;

class Child {
 public:
  Child(const ChildProgram& program, const Clock& clock) : program_(program), clock_(clock) {
    SpawnRequest request;
    request.program = own_program_path();
    request.argv = program.argv;
    for (const char* const* entry = program.environment; entry && *entry; ++entry)
      request.environment.emplace_back(*entry);
    request.signal_mask = signals_.mask_before();
    process_ = spawn_rank(request);
    out_ = LineReader(std::move(process_.out));
    err_ = LineReader(std::move(process_.err));
  }

  ~Child() {
    if (ended_) return;
    ::kill(process_.pid, SIGKILL);
    ::waitpid(process_.pid, nullptr, 0);
  }

  ChildEnd run() {
    while (!ended_) turn();
    out_.finish([this](const std::string& line) { take(line); });
    err_.finish([this](const std::string& line) { keep(line); });
    return std::move(end_);
  }

 private:
  void turn() {
    std::array<pollfd, 4> fds{{{process_.pidfd.get(), POLLIN, 0},
                               {out_.open() ? out_.fd() : -1, POLLIN, 0},
                               {err_.open() ? err_.fd() : -1, POLLIN, 0},
                               {signals_.fd(), POLLIN, 0}}};
    ::poll(fds.data(), fds.size(), 200);
    out_.read([this](const std::string& line) { take(line); });
    err_.read([this](const std::string& line) { keep(line); });
    while (const std::optional<int> signal = signals_.take()) {
      if (*signal == SIGTSTP) {  // Ctrl-Z does not reach the child, because it has its own process group
        ::kill(process_.pid, SIGTSTP);
        ::raise(SIGSTOP);
        ::kill(process_.pid, SIGCONT);
        continue;
      }
      end_.interrupted = true;
      asked_.reset();
      ask_to_end(SIGTERM);
    }
    if (asked_ && clock_.now() - *asked_ > kPatience) ::kill(process_.pid, SIGKILL);
    if (fds[0].revents != 0) reap();
  }

  void take(const std::string& line) {
    if (!program_.on_line(line)) ask_to_end(SIGUSR2);
  }

  void keep(const std::string& line) {
    end_.errors.push_back(line);
    if (end_.errors.size() > kErrorLines) end_.errors.pop_front();
  }

  // SIGTERM interrupts a run. After SIGUSR2 the run ends as after its last step.
  void ask_to_end(int signal) {
    if (asked_ || ended_) return;
    asked_ = clock_.now();
    ::kill(process_.pid, signal);
  }

  void reap() {
    int status = 0;
    if (::waitpid(process_.pid, &status, WNOHANG) != process_.pid) return;
    end_.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ended_ = true;
  }

  const ChildProgram& program_;
  const Clock& clock_;
  SignalWatch signals_;
  RankProcess process_;
  LineReader out_, err_;
  ChildEnd end_;
  std::optional<Nanoseconds> asked_;  // when the child was asked to end
  bool ended_ = false;
};

}  // namespace

std::string own_program_path() {
  std::array<char, PATH_MAX> path{};
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  struct stat named{}, running{};
  const bool same = n > 0 && ::stat(path.data(), &named) == 0 && ::stat("/proc/self/exe", &running) == 0 &&
                    named.st_dev == running.st_dev && named.st_ino == running.st_ino;
  return same ? path.data() : "/proc/self/exe";
}

ChildEnd run_child(const ChildProgram& program, const Clock& clock) {
  return Child(program, clock).run();
}

}  // namespace starling
