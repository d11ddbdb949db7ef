// The Connector over TCP: each rank listens on one address of its host, connects to the ranks below it, then accepts
// those above it. Every connection proves the job key before anything else.
#pragma once

#include <string>

#include "starling/comm/mesh.h"
#include "starling/net/job_key.h"

namespace starling {

// bind_address: the address of this host that the others reach ("10.0.0.1"), never "all interfaces"; a free port is
// taken. For GroupSetup::connect. relay: stands between the endpoints and their sockets (net/emulated_link.h); may be empty.
Connector tcp_mesh(std::string bind_address, JobIdentity identity,
                   std::function<UniqueFd(UniqueFd)> relay = nullptr);

}  // namespace starling
