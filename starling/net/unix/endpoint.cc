#include "starling/net/unix/endpoint.h"

#include "starling/net/address.h"
#include "starling/net/stream_endpoint.h"

namespace starling {

std::unique_ptr<Endpoint> unix_connect(const std::string& address, const JobIdentity& identity,
                                       Deadline deadline) {
  return connect_stream(unix_address(address), identity, deadline);
}

}  // namespace starling
