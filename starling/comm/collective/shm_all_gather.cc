#include "starling/comm/collective/shm_all_gather.h"

#include <cstring>

#include "starling/comm/collective/staging.h"
#include "starling/comm/reduce/copy_bytes.h"

namespace starling {

void shm_all_gather(LocalTeam& team, const Operation& operation, const void* in, void* out, size_t bytes) {
  const int p = team.size();
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<std::byte*>(out);
  const auto length = [&](size_t chunk) { return std::min(kSlotBytes, bytes - chunk * kSlotBytes); };
  const auto fill = [&](size_t chunk) {
    copy_bytes(team.slot(team.rank(), team.next_chunk() + chunk), from + chunk * kSlotBytes, length(chunk));
  };
  const uint64_t where = bytes > kFlatBytes ? team.locate(in, bytes) : kNowhere;
  const bool ahead = where == kNowhere;
  if (ahead) prefill(team, fill);
  team.enter(operation, where, ahead);
  std::byte* own = to + team.rank() * bytes;
  if (own != from && bytes > 0) copy_bytes(own, from, bytes);
  team.count_published(static_cast<uint64_t>(p - 1) * bytes);
  team.count_received(static_cast<uint64_t>(p - 1) * bytes);
  if (team.all_in_windows()) {
    for (int i = 1; i < p; ++i) {
      const int r = (team.rank() + i) % p;
      const std::byte* source = team.address(team.where(r));
      if (source != to + r * bytes) copy_bytes(to + r * bytes, source, bytes);
    }
    team.post_exit();
    team.await_exit_all();
    return;
  }
  run_staged(team, (bytes + kSlotBytes - 1) / kSlotBytes, fill, [&](size_t chunk) {
    for (int i = 1; i < p; ++i) {
      const int r = (team.rank() + i) % p;
      copy_bytes(to + r * bytes + chunk * kSlotBytes, team.slot(r, team.next_chunk() + chunk), length(chunk));
    }
  });
}

}  // namespace starling
