// Listening over TCP.
#pragma once

#include <memory>
#include <string>

#include "starling/net/endpoint.h"
#include "starling/net/pending_connections.h"

namespace starling {

// Listens at "host:port" and nowhere else; port 0 takes a free one (Listener::address tells which). CommError where the
// host means every interface (0.0.0.0, [::]), is not of this machine, or the port is in use.
std::unique_ptr<Listener> tcp_listen(const std::string& address, const JobIdentity& identity,
                                     AdmissionLimits limits = {});

}  // namespace starling
