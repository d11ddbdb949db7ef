// The Connector over TCP. Each rank listens on one address of its host. It connects to the lower ranks, a few
// at a time, and accepts the higher ranks meanwhile. Every connection first proves the job key, the group
// with its generation, and the ranks of both ends. If the listener drops a connection during this handshake,
// the rank connects again after a pause.
#pragma once

#include <string>

#include "starling/comm/network/peer_connections.h"
#include "starling/net/security/job_key.h"

namespace starling {

// Returns a Connector for GroupSetup::connect.
// `bind_address` is an address of this host that the other hosts reach ("10.0.0.1"), never "all interfaces".
// The listener takes a free port. `relay` returns the socket that takes the place of a connection's socket
// (net/emulation/emulated_link.h). It may be empty.
Connector tcp_connector(std::string bind_address, JobIdentity identity,
                        std::function<UniqueFd(UniqueFd)> relay = nullptr);

}  // namespace starling
