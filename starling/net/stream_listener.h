// The Listener over stream sockets: what tcp/ and unix/ share.
#pragma once

#include <memory>

#include "starling/net/address.h"
#include "starling/net/endpoint.h"
#include "starling/net/pending_connections.h"

namespace starling {

// Listens at exactly `address`. CommError where that is impossible (socket.h, listen_at). While accept() waits it
// greets all that connect at the same time: one slow peer holds nobody up.
std::unique_ptr<Listener> listen_stream(const SocketAddress& address, const JobIdentity& identity,
                                        AdmissionLimits limits = {});

}  // namespace starling
