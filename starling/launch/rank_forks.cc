#include "starling/launch/rank_forks.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr size_t kMostFds = 8;
constexpr int kFailed = 127;  // the status of a copy that could not begin, as in a shell

// What begin() sends first, together with the descriptors. Then follow the variables of the environment, each
// with its final zero.
struct Header {
  std::array<int, kMostFds> numbers{};  // the numbers that the descriptors get
  size_t fds = 0;
  size_t bytes = 0;  // of all variables
  int rank = 0;
  bool pinned = false;
  cpu_set_t cpus{};
};

// Calls `move` until it has moved all bytes. Returns false if it cannot.
template <typename Move>
bool move_all(char* bytes, size_t size, const Move& move) {
  while (size > 0) {
    const ssize_t n = move(bytes, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

// Receives the header and its descriptors. Returns false if the launcher has closed its end.
bool receive(int line, Header& header, std::array<int, kMostFds>& fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))];
  iovec part{&header, sizeof header};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = ::recvmsg(line, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (n != sizeof header || c == nullptr || c->cmsg_type != SCM_RIGHTS) return false;
  if (c->cmsg_len != CMSG_LEN(header.fds * sizeof(int))) return false;  // this process may open no more
  std::memcpy(fds.data(), CMSG_DATA(c), header.fds * sizeof(int));
  return true;
}

// Sends what receive() and wait_to_begin() take. Throws Error(kInternal) if the copy has ended.
void send(int line, Header& header, const std::array<int, kMostFds>& fds, std::string& text) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
  iovec part{&header, sizeof header};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(header.fds * sizeof(int));
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(header.fds * sizeof(int));
  std::memcpy(CMSG_DATA(c), fds.data(), header.fds * sizeof(int));
  const auto put = [line](char* bytes, size_t size) { return ::send(line, bytes, size, MSG_NOSIGNAL); };
  if (::sendmsg(line, &message, MSG_NOSIGNAL) != sizeof header || !move_all(text.data(), text.size(), put))
    cannot_start("the copy of this process ended");
}

// Gives the descriptors their numbers. They are first moved above all numbers, because one may have the
// number that another gets.
bool place(const Header& header, std::array<int, kMostFds>& fds) {
  const int above = 1 + *std::max_element(header.numbers.begin(), header.numbers.end());
  for (size_t i = 0; i < header.fds; ++i) {
    const UniqueFd low(fds[i]);
    fds[i] = ::fcntl(low.get(), F_DUPFD_CLOEXEC, above);
    if (fds[i] < 0) return false;
  }
  for (size_t i = 0; i < header.fds; ++i) {
    const UniqueFd high(fds[i]);
    if (::dup2(high.get(), header.numbers[i]) < 0) return false;
  }
  return true;
}

// Replaces the environment by the variables in `text`.
void set_environment(std::string& text) {
  ::clearenv();
  for (size_t at = 0; at < text.size();) {
    const size_t next = at + std::strlen(&text[at]) + 1;
    if (const size_t equals = text.find('=', at); equals < next) {
      text[equals] = '\0';
      ::setenv(&text[at], &text[equals + 1], 1);
    }
    at = next;
  }
}

// Adds the rank to the name of the process, of which the system keeps 15 characters.
void show_rank(int rank) {
  char name[16] = {};
  ::prctl(PR_GET_NAME, name);
  const std::string ending = fmt::format(":{}", rank);
  ::prctl(PR_SET_NAME, (std::string(name).substr(0, 15 - ending.size()) + ending).c_str());
}

// Waits in a copy until it may become a rank. Ends the process if it may not.
void wait_to_begin(UniqueFd line) {
  Header header;
  std::array<int, kMostFds> fds{};
  if (!receive(line.get(), header, fds)) ::_exit(kFailed);
  std::string text(header.bytes, '\0');
  const auto get = [&line](char* bytes, size_t size) { return ::recv(line.get(), bytes, size, 0); };
  if (!move_all(text.data(), text.size(), get)) ::_exit(kFailed);
  line.reset();  // a descriptor may get its number
  if (!place(header, fds)) ::_exit(kFailed);
  if (header.pinned) ::sched_setaffinity(0, sizeof header.cpus, &header.cpus);  // as in spawn_rank()
  set_environment(text);
  show_rank(header.rank);
}

void end(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

bool has_one_thread() {
  DIR* threads = ::opendir("/proc/self/task");
  if (threads == nullptr) return false;
  int count = 0;
  while (const dirent* entry = ::readdir(threads)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(threads);
  return count == 1;
}

}  // namespace

bool RankForks::possible() {
  for (int i = 0; i < 50; ++i) {
    if (has_one_thread()) return true;
    ::usleep(1000);  // a thread that was joined stays in /proc for a moment
  }
  return false;
}

RankForks::RankForks(int count) {
  // What is in a buffer would be written by each copy.
  std::fflush(nullptr);
  std::cout.flush();
  std::clog.flush();
  try {
    for (int i = 0; i < count && !in_rank_; ++i) in_rank_ = fork_one();
  } catch (...) {
    for (const Copy& copy : copies_) end(copy.pid);
    throw;
  }
}

// Returns true in the copy.
bool RankForks::fork_one() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) cannot_start("socketpair");
  UniqueFd copy_line(ends[1]), line = raised(ends[0]);
  copy_line = raised(copy_line.release());
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) cannot_start("fork");
  if (pid > 0) {
    copies_.push_back({pid, std::move(line)});
    return false;
  }
  copies_.clear();  // they are children of the launcher
  line.reset();
  // A program that ignores SIGPIPE has decided so itself.
  if (!become_rank(parent, {SIGPIPE})) ::_exit(kFailed);
  wait_to_begin(std::move(copy_line));
  return true;
}

RankForks::~RankForks() {
  for (const Copy& copy : copies_) end(copy.pid);
}

RankProcess RankForks::begin(const SpawnRequest& request, int rank) {
  if (copies_.empty()) throw Error(ErrorCode::kInternal, "no copy is left to become a rank");
  const Copy copy = std::move(copies_.front());
  copies_.erase(copies_.begin());
  ChildStreams streams;
  try {
    streams = make_streams(request);
    const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    Header header;
    std::array<int, kMostFds> fds{};
    const auto pass = [&](int fd, int number) {
      header.numbers.at(header.fds) = number;
      fds.at(header.fds++) = fd;
    };
    pass(request.in >= 0 ? request.in : null.get(), STDIN_FILENO);
    if (streams.child_out.valid()) pass(streams.child_out.get(), STDOUT_FILENO);
    if (streams.child_err.valid()) pass(streams.child_err.get(), STDERR_FILENO);
    for (const int fd : request.inherit) pass(fd, fd);
    header.rank = rank;
    header.pinned = !request.cpus.empty();
    for (const int cpu : request.cpus) CPU_SET(cpu, &header.cpus);
    std::string text;
    for (const std::string& variable : request.environment)
      text.append(variable.c_str(), variable.size() + 1);
    header.bytes = text.size();
    send(copy.line.get(), header, fds, text);
  } catch (...) {
    end(copy.pid);
    throw;
  }
  return adopt_rank(copy.pid, streams);
}

}  // namespace starling
