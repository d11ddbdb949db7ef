// The Connector over UCX. It makes the connections of tcp_connector and replaces each by a connection over
// UCX (net/ucx/ucx_endpoint.h). Messages then travel by the transport that UCX chooses: RDMA, shared memory,
// or its own TCP.
#pragma once

#include <memory>
#include <string>

#include "starling/comm/network/peer_connections.h"
#include "starling/net/security/job_key.h"

namespace starling {

class UcxLibrary;

// Loads the plug-in. For `net_devices` see UcxRequest (net/ucx/ucx_plugin.h).
// Errors: ConfigError that names comm.engine if the plug-in is missing or UCX cannot be initialized.
std::shared_ptr<UcxLibrary> load_ucx(const std::string& net_devices);

// Returns a Connector for GroupSetup::connect. `bind_address` is as in tcp_connector().
// The Connector throws an error that names the rank if UCX does not reach a rank.
Connector ucx_connector(std::shared_ptr<UcxLibrary> library, std::string bind_address, JobIdentity identity);

}  // namespace starling
