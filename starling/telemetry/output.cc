#include "starling/telemetry/output.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace starling {
namespace {

// Blocks SIGPIPE in this thread and discards a SIGPIPE that a write of this thread raised.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~SigpipeBlocked() {
    const int saved = errno;
    const timespec none{};
    if (!was_pending_) {
      while (sigtimedwait(&set_, nullptr, &none) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = saved;
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t set_, before_;
  bool was_pending_;
};

}  // namespace

bool print_line(std::string_view line) {
  return FdOutput(STDOUT_FILENO).write(std::string(line) + "\n");
}

bool FdOutput::write(std::string_view text) {
  const SigpipeBlocked guard;
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      // Another process made the shared file description non-blocking. Wait for space, as a blocking write
      // does.
      pollfd room{fd_, POLLOUT, 0};
      if (::poll(&room, 1, 10'000) == 0) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

int FdOutput::columns() const {
  winsize size{};
  return ::ioctl(fd_, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace starling
