// The Connector over UCX: the connections of tcp_mesh, upon which each pair of ranks meets by UCX (net/ucx/endpoint.h). Messages then go by
// whatever UCX has found: RDMA, shared memory, TCP of its own.
#pragma once

#include <memory>
#include <string>

#include "starling/comm/mesh.h"
#include "starling/net/job_key.h"

namespace starling {

class UcxLibrary;

// Loads the engine; net_devices: see UcxRequest. ConfigError naming comm.engine where it is not there or UCX cannot begin.
std::shared_ptr<UcxLibrary> load_ucx(const std::string& net_devices);

// As tcp_mesh. CommError naming the rank that UCX knows no way to.
Connector ucx_mesh(std::shared_ptr<UcxLibrary> library, std::string bind_address, JobIdentity identity);

}  // namespace starling
