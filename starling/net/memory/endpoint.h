// Endpoints in memory, for tests and the simulator: two ends in one process that behave as a connection does.
// What is sent is copied into an unbounded queue, so sending never waits. "Socket" bytes are the bytes of the
// messages plus those that the frame header would take.
#pragma once

#include <memory>
#include <utility>

#include "starling/net/endpoint.h"

namespace starling {

// Two connected ends. Either may outlive the other, whose peer then gets CommErrors.
std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> make_memory_endpoints();

}  // namespace starling
