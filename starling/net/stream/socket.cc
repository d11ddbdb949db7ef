#include "starling/net/stream/socket.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr int kBufferBytes = 4 << 20;  // the kernel may limit it
constexpr int kBacklog = 4096;         // of a listener, of which the kernel may allow less (SOMAXCONN)
constexpr int kTcpRtoMaxMs = 44;       // TCP_RTO_MAX_MS of Linux 6.15, which the installed headers may lack

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

void set_option(int fd, int level, int name, int value) {
  // These options only tune. A kernel that lacks one is slower, not wrong.
  (void)::setsockopt(fd, level, name, &value, sizeof(value));
}

[[noreturn]] void throw_cannot_listen(const SocketAddress& address, int error) {
  if (error == EADDRINUSE && address.family() == AF_UNIX)
    throw CommError(
        fmt::format("{}: the Unix socket is in use; another job with this id runs here (ss -xlp | grep "
                    "'{}' shows it)",
                    address.text(), address.text()));
  if (error == EADDRINUSE)
    throw CommError(
        fmt::format("port {} of {} is in use; find who holds it with `ss -ltnp 'sport = :{}'`, or choose "
                    "another port (0: any free one)",
                    address.port(), address.host(), address.port()));
  if (error == EADDRNOTAVAIL)
    throw CommError(
        fmt::format("{} is not an address of this host; `ip address` lists its addresses", address.host()));
  throw CommError(fmt::format("{}: cannot listen: {}", address.text(), explain_errno(error)));
}

// Keeps the first descriptor of the message in `passed` and closes all others.
void take_descriptors(const msghdr& message, UniqueFd* passed) {
  for (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(c))) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);
      if (passed != nullptr && !passed->valid()) *passed = std::move(owned);
    }
  }
}

}  // namespace

std::string explain_errno(int error) {
  std::string words = std::generic_category().message(error);
  switch (error) {
    case ECONNRESET:
    case EPIPE:
      return "connection reset: the process there ended or was killed";
    case ETIMEDOUT:
      return "no answer: the host or the network to it is down";
    case EHOSTUNREACH:
    case ENETUNREACH:
      return fmt::format("the host cannot be reached ({})", words);
    case ECONNREFUSED:
      return "connection refused: nobody listens there";
    case ENOENT:
      return "no such socket: nobody listens there";
    case EMFILE:
    case ENFILE:
      return fmt::format("{}; raise the limit with ulimit -n", words);
    default:
      return words;
  }
}

Moved send_some(int fd, std::span<iovec> parts, int pass_fd) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (pass_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return {static_cast<size_t>(sent), false, 0};
    if (errno == EINTR) continue;
    return {0, false, would_block(errno) ? 0 : errno};
  }
}

Moved recv_some(int fd, std::span<iovec> parts, UniqueFd* passed) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
  if (passed != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  for (;;) {
    const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0) {
      if (passed != nullptr) take_descriptors(message, passed);
      return {static_cast<size_t>(got), got == 0, 0};
    }
    if (errno == EINTR) continue;
    return {0, false, would_block(errno) ? 0 : errno};
  }
}

bool wait_for(int fd, short events, Deadline deadline) {
  pollfd polled{fd, events, 0};
  for (;;) {
    const int ready = ::poll(&polled, 1, poll_timeout(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw CommError("poll: " + explain_errno(errno));
    if (has_passed(deadline)) return false;
  }
}

UniqueFd listen_at(const SocketAddress& address) {
  if (address.is_any())
    throw CommError(
        fmt::format("{}: Starling does not listen on every interface; give the address of one (`ip "
                    "address` lists them)",
                    address.text()));
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw CommError("socket: " + explain_errno(errno));
  if (address.family() != AF_UNIX)
    set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // ignores TIME_WAIT, but not other listeners
  // Accepted sockets inherit the buffers. TCP must know their sizes before it offers its window.
  set_option(fd.get(), SOL_SOCKET, SO_RCVBUF, kBufferBytes);
  set_option(fd.get(), SOL_SOCKET, SO_SNDBUF, kBufferBytes);
  if (::bind(fd.get(), address.data(), address.bytes()) != 0 || ::listen(fd.get(), kBacklog) != 0)
    throw_cannot_listen(address, errno);
  return fd;
}

UniqueFd connect_to(const SocketAddress& address, Deadline deadline, std::chrono::milliseconds dead_after) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw CommError("socket: " + explain_errno(errno));
  set_option(fd.get(), SOL_SOCKET, SO_RCVBUF, kBufferBytes);
  set_option(fd.get(), SOL_SOCKET, SO_SNDBUF, kBufferBytes);
  for (;;) {
    if (::connect(fd.get(), address.data(), address.bytes()) == 0) break;
    if (errno == EINTR) continue;
    if (errno == EISCONN) break;
    if (errno == EAGAIN && address.family() == AF_UNIX)
      throw CommError(fmt::format("{}: the listener's queue is full", address.text()));
    if (errno != EINPROGRESS && errno != EALREADY)
      throw CommError(fmt::format("{}: {}", address.text(), explain_errno(errno)));
    if (!wait_for(fd.get(), POLLOUT, deadline))
      throw TimeoutError(fmt::format(
          "{}: no connection within the timeout. Check for a firewall between the hosts", address.text()));
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0) throw CommError(fmt::format("{}: {}", address.text(), explain_errno(error)));
    break;
  }
  set_stream_options(fd.get(), address, dead_after);
  return fd;
}

UniqueFd connect_to_any(std::span<const SocketAddress> addresses, Deadline deadline,
                        std::chrono::milliseconds dead_after) {
  std::string why;
  bool late = false;
  for (size_t i = 0; i < addresses.size(); ++i) {
    const auto now = std::chrono::steady_clock::now();
    const auto share = (deadline - now) / static_cast<int64_t>(addresses.size() - i);
    try {
      return connect_to(addresses[i], i + 1 == addresses.size() ? deadline : now + share, dead_after);
    } catch (const CommError& error) {
      late = late || error.code() == ErrorCode::kTimeout;
      why += (why.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (late && has_passed(deadline)) throw TimeoutError(why);
  throw CommError(why);
}

UniqueFd listen_at_any(std::span<const SocketAddress> addresses) {
  for (size_t i = 0; i + 1 < addresses.size(); ++i) {
    try {
      return listen_at(addresses[i]);
    } catch (const CommError&) {  // the name has further addresses
    }
  }
  return listen_at(addresses.back());
}

std::optional<UniqueFd> accept_from(int listener) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) return fd;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (would_block(errno)) return std::nullopt;
    throw CommError("accept: " + explain_errno(errno));
  }
}

void set_stream_options(int fd, const SocketAddress& peer, std::chrono::milliseconds dead_after) {
  if (peer.family() == AF_UNIX) return;
  const auto seconds = static_cast<int>(std::chrono::ceil<std::chrono::seconds>(dead_after).count());
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, std::max(1, seconds - 1));
  set_option(fd, IPPROTO_TCP, kTcpRtoMaxMs, 1000);
}

std::optional<std::chrono::milliseconds> unanswered_for(int fd, std::chrono::milliseconds dead_after) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return std::nullopt;  // not TCP
  // A live host answers a retransmission, or a probe of a closed window, at once. Here two in a row have had
  // no answer.
  const bool unanswered = info.tcpi_retransmits >= 2 || info.tcpi_probes >= 2;
  const std::chrono::milliseconds silence(info.tcpi_last_ack_recv);
  if (!unanswered || silence < dead_after) return std::nullopt;
  return silence;
}

bool was_given_up(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 || info.tcpi_state != TCP_CLOSE)
    return false;
  int error = 0;
  bytes = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return false;
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == EHOSTDOWN || error == ENETUNREACH;
}

void set_keep_alive(int fd, bool on) {
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, on ? 1 : 0);
}

PeerCredentials peer_credentials(int fd) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0)
    throw CommError("SO_PEERCRED: " + explain_errno(errno));
  return {credentials.uid, credentials.pid};
}

void check_same_user(int fd) {
  if (local_address(fd).family() != AF_UNIX) return;
  const PeerCredentials peer = peer_credentials(fd);
  if (peer.uid != ::geteuid())
    throw CommError(fmt::format("pid {} on this host belongs to user {}, this process to user {}: refused",
                                peer.pid, peer.uid, ::geteuid()));
}

std::string describe_peer(int fd) {
  if (local_address(fd).family() == AF_UNIX)
    return fmt::format("pid {} on this host", peer_credentials(fd).pid);
  return remote_address(fd).text();
}

}  // namespace starling
