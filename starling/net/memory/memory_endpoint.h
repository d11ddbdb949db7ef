// Endpoints in memory, for tests: two ends in one process that behave as a connection does.
//
// What is sent is copied into an unbounded queue, so sending never waits. socket_sent() and socket_received()
// count the bytes of the messages and of their frame headers.
#pragma once

#include <memory>
#include <utility>

#include "starling/net/endpoint.h"

namespace starling {

// Returns two connected ends. Either end may outlive the other. The remaining end receives what was sent and
// then gets CommErrors.
std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> make_memory_endpoints();

}  // namespace starling
