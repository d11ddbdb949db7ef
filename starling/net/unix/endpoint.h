// Connecting over a Unix socket. Both ends check that the other process belongs to their own user.
#pragma once

#include <memory>
#include <string>

#include "starling/net/endpoint.h"
#include "starling/net/job_key.h"

namespace starling {

// Connects to "/path" or "@name" (abstract) and proves the job key.
std::unique_ptr<Endpoint> unix_connect(const std::string& address, const JobIdentity& identity,
                                       Deadline deadline);

}  // namespace starling
