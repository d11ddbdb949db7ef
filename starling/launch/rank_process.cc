#include "starling/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

// The data that the child needs. It is prepared before fork(), because the child may only call
// async-signal-safe functions.
struct Prepared {
  const SpawnRequest& request;
  std::vector<char*> argv, environment;
  cpu_set_t cpus{};
  int in = -1, out = -1, err = -1, report = -1;
  pid_t parent = -1;
};

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

[[noreturn]] void child(const Prepared& p) {
  const auto give_up = [&p] {
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(p.report, &error, sizeof error);
    ::_exit(127);
  };
  if (!become_rank(p.parent, {})) give_up();
  if (::dup2(p.in, STDIN_FILENO) < 0) give_up();
  if (p.out >= 0 && ::dup2(p.out, STDOUT_FILENO) < 0) give_up();
  if (p.err >= 0 && ::dup2(p.err, STDERR_FILENO) < 0) give_up();
  for (const int fd : p.request.inherit) {
    if (::fcntl(fd, F_SETFD, 0) != 0) give_up();
  }
  if (!p.request.cpus.empty())
    ::sched_setaffinity(0, sizeof p.cpus, &p.cpus);  // may fail: the cpuset may be smaller now
  ::sigprocmask(SIG_SETMASK, &p.request.signal_mask, nullptr);
  ::execve(p.request.program.c_str(), p.argv.data(), p.environment.data());
  give_up();
  ::_exit(127);
}

}  // namespace

[[noreturn]] void cannot_start(const char* what) {
  throw Error(ErrorCode::kInternal, fmt::format("cannot start a rank: {}: {}. Check ulimit -u and ulimit -n",
                                                what, std::strerror(errno)));
}

UniqueFd raised(int fd) {
  UniqueFd low(fd);
  UniqueFd high(::fcntl(fd, F_DUPFD_CLOEXEC, 10));
  if (!high.valid()) cannot_start("fcntl");
  return high;
}

std::pair<UniqueFd, UniqueFd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) cannot_start("pipe");
  UniqueFd write_end(ends[1]);
  UniqueFd read_end = raised(ends[0]);
  write_end = raised(write_end.release());
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  return {std::move(read_end), std::move(write_end)};
}

ChildStreams make_streams(const SpawnRequest& request) {
  ChildStreams streams;
  if (request.pipe_stdout) std::tie(streams.out, streams.child_out) = make_pipe();
  if (request.pipe_stderr) std::tie(streams.err, streams.child_err) = make_pipe();
  return streams;
}

bool become_rank(pid_t parent, std::initializer_list<int> kept) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
  if (::getppid() != parent) ::_exit(127);  // the launcher ended in the meantime
  ::setpgid(0, 0);
  struct sigaction action{}, now{};
  for (int s = 1; s < NSIG; ++s) {
    if (std::find(kept.begin(), kept.end(), s) != kept.end()) continue;
    action.sa_handler = s == SIGTTOU ? SIG_IGN : SIG_DFL;
    const bool ignored = ::sigaction(s, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
    if (ignored || s == SIGTTOU) ::sigaction(s, &action, nullptr);
  }
  return true;
}

RankProcess adopt_rank(pid_t pid, ChildStreams& streams) {
  RankProcess process;
  process.pid = pid;
  ::setpgid(pid, pid);
  process.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.pidfd.valid()) {
    const int saved = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    errno = saved;
    cannot_start("pidfd_open (Linux 5.3 or newer is needed)");
  }
  process.out = std::move(streams.out);
  process.err = std::move(streams.err);
  return process;
}

RankProcess spawn_rank(const SpawnRequest& request) {
  Prepared p{
      .request = request, .argv = pointers(request.argv), .environment = pointers(request.environment)};
  for (const int cpu : request.cpus) CPU_SET(cpu, &p.cpus);
  const UniqueFd null = raised(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto [report_read, report_write] = make_pipe();
  ::fcntl(report_read.get(), F_SETFL, 0);  // exec() closes the write end, so the read below ends
  ChildStreams streams = make_streams(request);
  p.in = request.in >= 0 ? request.in : null.get();
  p.out = streams.child_out.get();
  p.err = streams.child_err.get();
  p.report = report_write.get();
  p.parent = ::getpid();

  const pid_t pid = ::fork();
  if (pid < 0) cannot_start("fork");
  if (pid == 0) child(p);
  report_write.reset();
  int error = 0;
  ssize_t n;
  do {
    n = ::read(report_read.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == sizeof error) {
    ::waitpid(pid, nullptr, 0);
    throw Error(ErrorCode::kInternal, fmt::format("cannot execute {}: {}. Check the path and its permissions",
                                                  request.program, std::strerror(error)));
  }
  return adopt_rank(pid, streams);
}

bool would_end(pid_t pid, int signal) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  uint64_t taken = 0;
  bool known = false;
  for (std::string line; std::getline(status, line);) {
    for (const char* field : {"SigBlk:", "SigIgn:", "SigCgt:"}) {
      if (!line.starts_with(field)) continue;
      taken |= std::strtoull(line.c_str() + std::strlen(field), nullptr, 16);
      known = true;
    }
  }
  if (!known || (taken >> (signal - 1) & 1) != 0) return false;
  // While a process is in sigwait(), its mask does not show the signals that it waits for.
  long call = -1;
  std::ifstream(fmt::format("/proc/{}/syscall", pid)) >> call;
  return call != SYS_rt_sigtimedwait;
}

}  // namespace starling
