// Connecting over TCP.
#pragma once

#include <memory>
#include <string>

#include "starling/net/endpoint.h"
#include "starling/net/job_key.h"

namespace starling {

// Connects to "host:port" and proves the job key. Not retried: who connects knows from the store that the peer listens.
std::unique_ptr<Endpoint> tcp_connect(const std::string& address, const JobIdentity& identity,
                                      Deadline deadline);

}  // namespace starling
