#include "starling/c10d/process_group.h"

#include <c10/core/DeviceType.h>
#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <utility>

#include "starling/c10d/backend.h"

namespace starling {
namespace {

void set_cpu_backend(c10d::ProcessGroup& group, const c10::intrusive_ptr<c10d::Backend>& backend) {
  group.setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::CUSTOM, backend);
  group.setDefaultBackend(c10d::ProcessGroup::CUSTOM);
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(std::shared_ptr<Group> group) {
  auto result = c10::make_intrusive<c10d::ProcessGroup>(group->rank(), group->size());
  set_cpu_backend(*result, c10::make_intrusive<StarlingBackend>(std::move(group)));
  return result;
}

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                          int rank, int size,
                                                          const RendezvousOptions& rendezvous,
                                                          const std::vector<DeviceBackend>& devices) {
  auto result = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  set_cpu_backend(*result, StarlingBackend::make(store, rank, size, rendezvous));
  for (const DeviceBackend& device : devices) {
    DeviceRequest request;
    request.store = c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("starling/{}/{}", rendezvous.name, c10::DeviceTypeName(device.device, true)), store);
    request.rank = rank;
    request.size = size;
    request.timeout = rendezvous.group.timeout;
    request.name = rendezvous.name;
    request.world_ranks = rendezvous.world_ranks;
    result->setBackend(device.device, device.type, device.make(request));
  }
  return result;
}

}  // namespace starling
