#include "starling/net/tcp/listener.h"

#include "starling/net/address.h"
#include "starling/net/stream_listener.h"

namespace starling {

std::unique_ptr<Listener> tcp_listen(const std::string& address, const JobIdentity& identity,
                                     AdmissionLimits limits) {
  return listen_stream(resolve(parse_host_port(address)), identity, limits);
}

}  // namespace starling
