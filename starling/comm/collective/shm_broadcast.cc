#include "starling/comm/collective/shm_broadcast.h"

#include <cstring>

#include "starling/comm/collective/staging.h"
#include "starling/comm/reduce/copy_bytes.h"

namespace starling {

void shm_broadcast(LocalTeam& team, const Operation& operation, void* data, size_t bytes, int root) {
  auto* own = static_cast<std::byte*>(data);
  const bool is_root = team.rank() == root;
  const auto length = [&](size_t chunk) { return std::min(kSlotBytes, bytes - chunk * kSlotBytes); };
  const auto fill = [&](size_t chunk) {
    if (!is_root) return;
    copy_bytes(team.slot(root, team.next_chunk() + chunk), own + chunk * kSlotBytes, length(chunk));
  };
  const uint64_t where = is_root && bytes > kFlatBytes ? team.locate(data, bytes) : kNowhere;
  const bool ahead = where == kNowhere;
  if (ahead) prefill(team, fill);
  team.enter(operation, where, ahead);
  if (is_root) {
    team.count_published(static_cast<uint64_t>(team.size() - 1) * bytes);
  } else {
    team.count_received(bytes);
  }
  if (team.where(root) == kNowhere) {
    run_staged(team, (bytes + kSlotBytes - 1) / kSlotBytes, fill, [&](size_t chunk) {
      if (is_root) return;
      copy_bytes(own + chunk * kSlotBytes, team.slot(root, team.next_chunk() + chunk), length(chunk));
    });
    return;
  }
  if (is_root) {
    team.await_exit_all();
    return;
  }
  const std::byte* source = team.address(team.where(root));
  if (source != own) copy_bytes(own, source, bytes);
  team.post_exit();
}

}  // namespace starling
