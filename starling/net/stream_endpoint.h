// The Endpoint over a connected, authenticated stream socket: what tcp/ and unix/ share.
#pragma once

#include <memory>
#include <string>

#include "starling/base/unique_fd.h"
#include "starling/net/address.h"
#include "starling/net/endpoint.h"
#include "starling/net/handshake.h"

namespace starling {

// Takes over a non-blocking socket on which the handshake is complete.
std::unique_ptr<Endpoint> make_stream_endpoint(UniqueFd socket, const ConnectionKeys& keys);

// The identity for the connection `fd`: over a Unix socket data stays as it is, for it does not leave this host's kernel, which
// tells each side who the other is.
JobIdentity identity_on(int fd, const JobIdentity& identity);

// The client's side of the handshake on a fresh connection. Errors name `address`.
ConnectionKeys greet(int fd, const JobIdentity& identity, const std::string& address, Deadline deadline);

// Connects, checks the user (Unix sockets), greets.
std::unique_ptr<Endpoint> connect_stream(const SocketAddress& address, const JobIdentity& identity,
                                         Deadline deadline);

}  // namespace starling
