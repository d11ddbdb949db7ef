#include "starling/net/ucx/sleep.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {
namespace {

UniqueFd checked_fd(int fd, const char* call) {
  if (fd < 0) throw CommError(fmt::format("{}: {}", call, std::generic_category().message(errno)));
  return UniqueFd(fd);
}

}  // namespace

UcxSleep::UcxSleep(int worker_fd, int tcp_fd)
    : tcp_fd_(tcp_fd),
      wake_(checked_fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      poll_(checked_fd(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
  for (const int fd : {worker_fd, tcp_fd, wake_.get()}) {
    epoll_event event{EPOLLIN, {}};
    if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      throw CommError(fmt::format("epoll_ctl: {}", std::generic_category().message(errno)));
  }
}

void UcxSleep::forget_tcp() {
  ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, tcp_fd_, nullptr);
}

void UcxSleep::begin(bool busy) {
  sleeping_ = true;
  if (busy) wake();
}

void UcxSleep::end() {
  sleeping_ = false;
  eventfd_t value;
  if (std::exchange(woken_, false)) STARLING_CHECK(::eventfd_read(wake_.get(), &value) == 0);
}

void UcxSleep::wake() {
  if (!std::exchange(sleeping_, false)) return;
  woken_ = true;
  STARLING_CHECK(::eventfd_write(wake_.get(), 1) == 0);
}

}  // namespace starling
