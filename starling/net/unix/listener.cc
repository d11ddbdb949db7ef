#include "starling/net/unix/listener.h"

#include "starling/net/address.h"
#include "starling/net/stream_listener.h"

namespace starling {

std::unique_ptr<Listener> unix_listen(const std::string& address, const JobIdentity& identity,
                                      AdmissionLimits limits) {
  return listen_stream(unix_address(address), identity, limits);
}

}  // namespace starling
