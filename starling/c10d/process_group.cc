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
                                                          int rank, int size, const MeetingOptions& meeting,
                                                          const std::vector<DeviceBackend>& devices) {
  auto result = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  set_cpu_backend(*result, StarlingBackend::make(store, rank, size, meeting));
  for (const DeviceBackend& device : devices) {
    DeviceRequest request;
    request.store = c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("starling/{}/{}", meeting.name, c10::DeviceTypeName(device.device, true)), store);
    request.rank = rank;
    request.size = size;
    request.timeout = meeting.group.timeout;
    request.name = meeting.name;
    request.world_ranks = meeting.world_ranks;
    result->setBackend(device.device, device.type, device.make(request));
  }
  return result;
}

}  // namespace starling
