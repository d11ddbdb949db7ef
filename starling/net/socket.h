// System calls on stream sockets, with our errors. All sockets here are non-blocking and close-on-exec.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "starling/base/unique_fd.h"
#include "starling/net/address.h"
#include "starling/net/deadline.h"

namespace starling {

// What errno means to a user: "connection reset: the process there ended or was killed (…)", …
std::string explain_errno(int error);

// What one call moved. `error` is an errno when the connection is gone; nothing moved and no error: nothing is possible
// now, poll. `ended`: the peer closed its side.
struct Moved {
  size_t bytes = 0;
  bool ended = false;
  int error = 0;
};

// Sends what the socket takes; never raises SIGPIPE. `pass_fd` >= 0 travels with the first byte (Unix sockets).
Moved send_some(int fd, std::span<iovec> parts, int pass_fd = -1);
// Receives what is there. With `passed`, a descriptor that came along is stored there; without, or when more than one
// comes, they are closed.
Moved recv_some(int fd, std::span<iovec> parts, UniqueFd* passed = nullptr);

// poll(2) for one descriptor; false when the deadline has passed. CommError if poll fails.
bool wait_for(int fd, short events, Deadline deadline);

// A socket that listens at exactly `address` (port 0: a free one). CommError where the address is every interface,
// is in use (and how to find by whom) or is not of this host.
UniqueFd listen_at(const SocketAddress& address);
// A connected socket. CommError if it is refused or unreachable, TimeoutError at the deadline.
UniqueFd connect_to(const SocketAddress& address, Deadline deadline);
// The next connection of a listener, nothing if none waits.
std::optional<UniqueFd> accept_from(int listener);

// TCP: no delay, keep-alive, large buffers. Nothing for Unix sockets.
void set_stream_options(int fd, const SocketAddress& peer);

// The host that has not answered for kDeadAfter is taken for dead. The kernel finds this by keep-alive on a connection
// where nothing is in flight; where something is, unanswered_for asks the kernel's counters. (TCP_USER_TIMEOUT would do
// both, but it also kills a connection to a live process that merely does not read for that long.)
constexpr std::chrono::seconds kDeadAfter{4};
// How long data sent on the TCP socket `fd` has not been answered although it was repeated, if that is kDeadAfter or
// more; nothing while the host answers, and for Unix sockets.
std::optional<std::chrono::milliseconds> unanswered_for(int fd);

// The user and process at the other end of a Unix socket.
struct PeerCredentials {
  unsigned uid = 0;
  int pid = 0;
};
PeerCredentials peer_credentials(int fd);
// CommError unless the process at the other end of a Unix socket belongs to our user. Nothing for TCP.
void check_same_user(int fd);

// How messages name the other end: "10.0.0.2:41234", "pid 4711 on this host".
std::string describe_peer(int fd);

}  // namespace starling
