#include "starling/c10d/process_group.h"

#include <utility>

#include "starling/c10d/backend.h"

namespace starling {

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(std::shared_ptr<Group> group) {
  auto result = c10::make_intrusive<c10d::ProcessGroup>(group->rank(), group->size());
  const c10::intrusive_ptr<c10d::Backend> backend = c10::make_intrusive<StarlingBackend>(std::move(group));
  result->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::CUSTOM, backend);
  result->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
  return result;
}

}  // namespace starling
