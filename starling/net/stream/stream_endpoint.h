// The Endpoint over a connected, authenticated stream socket, for TCP and Unix sockets. Both ends of a Unix
// socket check that the other process belongs to their own user.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "starling/base/unique_fd.h"
#include "starling/net/address.h"
#include "starling/net/endpoint.h"
#include "starling/net/security/handshake.h"

namespace starling {

// Makes the endpoint. It takes over a non-blocking socket on which the handshake is complete.
std::unique_ptr<Endpoint> make_stream_endpoint(UniqueFd socket, const ConnectionKeys& keys);

// Returns the identity for the connection `fd`. Data on a Unix socket is not protected, because it does not
// leave the kernel of this host. The kernel tells each side the user of the other side.
JobIdentity identity_on(int fd, const JobIdentity& identity);

// Carries out the client's side of the handshake on a fresh connection. `parties` names the two sides. A
// caller that makes several connections passes the `settings` of a client (make_tls_settings), which makes
// each connection cheaper. Errors: CommError and TimeoutError, which name `address`.
ConnectionKeys greet(int fd, const JobIdentity& identity, const Parties& parties, const std::string& address,
                     Deadline deadline, std::shared_ptr<const TlsSettings> settings = nullptr);

// Connects to one of `addresses` (connect_to_any), checks the user (Unix sockets) and carries out the
// handshake. `parties` names the two sides. Errors: those of connect_to_any(), check_same_user() and greet().
std::unique_ptr<Endpoint> connect_stream(std::span<const SocketAddress> addresses,
                                         const JobIdentity& identity, const Parties& parties,
                                         Deadline deadline,
                                         std::shared_ptr<const TlsSettings> settings = nullptr);

// Connects to "host:port" and proves the job key and the parties. It does not retry, because the caller knows
// from the store that the peer listens.
std::unique_ptr<Endpoint> tcp_connect(const std::string& address, const JobIdentity& identity,
                                      const Parties& parties, Deadline deadline,
                                      std::shared_ptr<const TlsSettings> settings = nullptr);

// Connects to the Unix socket "/path" or "@name" (abstract) and proves the job key and the parties.
std::unique_ptr<Endpoint> unix_connect(const std::string& address, const JobIdentity& identity,
                                       const Parties& parties, Deadline deadline);

}  // namespace starling
