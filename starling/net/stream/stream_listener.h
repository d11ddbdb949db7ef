// The Listener over stream sockets, for TCP and Unix sockets.
#pragma once

#include <memory>
#include <string>

#include "starling/net/address.h"
#include "starling/net/endpoint.h"
#include "starling/net/stream/pending_connections.h"

namespace starling {

// Listens at exactly `address` as the listener that `parties` describes. While accept() waits, it carries out
// the handshakes of all connecting peers at the same time, so a slow peer delays no other. Errors: CommError
// if it cannot listen there (listen_at in socket.h).
std::unique_ptr<Listener> listen_stream(const SocketAddress& address, const JobIdentity& identity,
                                        const Parties& parties, AdmissionLimits limits = {});

// Listens at "host:port" and nowhere else. Port 0 takes a free port, which Listener::address() returns.
// Errors: CommError for every interface (0.0.0.0, [::]), an address of another machine, or a port in use.
std::unique_ptr<Listener> tcp_listen(const std::string& address, const JobIdentity& identity,
                                     const Parties& parties, AdmissionLimits limits = {});

// Listens at the Unix socket "@name" or "/path". Processes of other users are dropped.
// "@name" is an abstract address, of which nothing is left when the process is killed. For "/path", the
// caller must have made the folder private (0700), and the path is removed with the listener.
std::unique_ptr<Listener> unix_listen(const std::string& address, const JobIdentity& identity,
                                      const Parties& parties, AdmissionLimits limits = {});

}  // namespace starling
