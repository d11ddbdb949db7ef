#include "starling/net/tcp/endpoint.h"

#include "starling/net/address.h"
#include "starling/net/stream_endpoint.h"

namespace starling {

std::unique_ptr<Endpoint> tcp_connect(const std::string& address, const JobIdentity& identity,
                                      Deadline deadline) {
  return connect_stream(resolve(parse_host_port(address)), identity, deadline);
}

}  // namespace starling
