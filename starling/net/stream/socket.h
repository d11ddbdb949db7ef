// System calls on stream sockets, with Starling's errors. All sockets here are non-blocking and
// close-on-exec.
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
#include "starling/net/security/job_key.h"

namespace starling {

// Returns what an errno means to a user, for example "connection reset: the process there ended or was
// killed".
std::string explain_errno(int error);

// Moved says what one call moved. If nothing was moved and there is no error, nothing is possible now: poll.
struct Moved {
  size_t bytes = 0;
  bool ended = false;  // the peer has closed its side
  int error = 0;       // not 0: an errno, and the connection is gone
};

// Sends what the socket takes. It never raises SIGPIPE. If `pass_fd` is not -1, that descriptor travels with
// the first byte (Unix sockets).
Moved send_some(int fd, std::span<iovec> parts, int pass_fd = -1);
// Receives what is there. A descriptor that came along is stored in *passed. Further descriptors are closed.
// If `passed` is null, all descriptors are closed.
Moved recv_some(int fd, std::span<iovec> parts, UniqueFd* passed = nullptr);

// Calls poll(2) for one descriptor. Returns false if the deadline has passed. Errors: CommError if poll
// fails.
bool wait_for(int fd, short events, Deadline deadline);

// Returns a socket that listens at exactly `address` (port 0: a free one).
// Errors: CommError if the address stands for every interface, is in use, or does not belong to this host.
UniqueFd listen_at(const SocketAddress& address);
// Returns a socket that listens at the first of `addresses` at which this is possible. There is at least one.
// Errors: as listen_at(), of the last address.
UniqueFd listen_at_any(std::span<const SocketAddress> addresses);
// Returns a connected socket. Errors: CommError if the connection is refused or the host unreachable;
// TimeoutError at the deadline.
UniqueFd connect_to(const SocketAddress& address, Deadline deadline,
                    std::chrono::milliseconds dead_after = kDeadAfter);
// Returns a socket that is connected to one of `addresses`, which belong to one name. They are tried one
// after another, each for its share of the time that is left. Errors: as connect_to(), with the reason of
// each address.
UniqueFd connect_to_any(std::span<const SocketAddress> addresses, Deadline deadline,
                        std::chrono::milliseconds dead_after = kDeadAfter);
// Returns the next connection of a listener, or nothing if none waits. Errors: CommError if this process or
// the machine has no descriptors left. The connection then stays in the kernel's queue.
std::optional<UniqueFd> accept_from(int listener);

// Sets the options of a TCP socket: no delay, keep-alive, and at most one second between retransmissions if
// the kernel can do that (Linux 6.15). Unix sockets are left as they are. listen_at() and connect_to() set
// the sizes of the buffers.
//
// A host that has not answered for `dead_after` counts as down. If nothing is in flight on a connection, the
// kernel finds this out by keep-alive, in whole seconds. Otherwise unanswered_for() asks the kernel's
// counters. TCP_USER_TIMEOUT would cover both cases, but it also ends a connection to a live process that
// does not read for that long.
void set_stream_options(int fd, const SocketAddress& peer, std::chrono::milliseconds dead_after = kDeadAfter);
// Returns how long the host has not answered data that was sent on the TCP socket `fd` and repeated.
// Returns nothing if that is less than `dead_after`, and for Unix sockets.
std::optional<std::chrono::milliseconds> unanswered_for(int fd,
                                                        std::chrono::milliseconds dead_after = kDeadAfter);

// Returns whether the kernel has ended the connection of the TCP socket `fd` because the host did not answer.
// It may take the pending error of the socket (SO_ERROR).
bool was_given_up(int fd);

// Turns the keep-alive of set_stream_options() on or off.
void set_keep_alive(int fd, bool on);

// PeerCredentials is the user and the process at the other end of a Unix socket.
struct PeerCredentials {
  unsigned uid = 0;
  int pid = 0;
};
// Returns the credentials of the process at the other end of a Unix socket.
PeerCredentials peer_credentials(int fd);
// Throws CommError if the process at the other end of a Unix socket belongs to another user. It does nothing
// for TCP.
void check_same_user(int fd);

// Returns the name of the other end for messages: "10.0.0.2:41234" or "pid 4711 on this host".
std::string describe_peer(int fd);

}  // namespace starling
