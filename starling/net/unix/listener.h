// Listening on a Unix socket.
#pragma once

#include <memory>
#include <string>

#include "starling/net/endpoint.h"
#include "starling/net/pending_connections.h"

namespace starling {

// Listens at "@name", an abstract address of which nothing is left when the process is killed, or at "/path", whose
// folder the caller made private (0700); the path is removed with the listener. Processes of other users are dropped.
std::unique_ptr<Listener> unix_listen(const std::string& address, const JobIdentity& identity,
                                      AdmissionLimits limits = {});

}  // namespace starling
