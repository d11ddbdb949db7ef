// Which network devices UCX uses.
#pragma once

#include <string>

namespace starling {

// The interface of `bind_address`, so that UCX listens there alone: unless UCX_NET_DEVICES names others (RDMA devices have names of their
// own, such as mlx5_0:1); then empty, for UCX reads that itself.
std::string ucx_devices(const std::string& bind_address);

}  // namespace starling
