#include "starling/run/ucx_devices.h"

#include <cstdlib>

#include "starling/net/address.h"

namespace starling {

std::string ucx_devices(const std::string& bind_address) {
  if (std::getenv("UCX_NET_DEVICES") != nullptr) return "";
  for (const Interface& interface : list_interfaces())
    if (interface.address.host() == bind_address) return interface.name;
  return "";
}

}  // namespace starling
