#include "starling/comm/collective/shm_reduce_scatter.h"

#include <cstring>
#include <vector>

#include "starling/comm/collective/shm_direct_all_reduce.h"
#include "starling/comm/collective/staging.h"
#include "starling/comm/reduce/copy_bytes.h"
#include "starling/comm/reduce/reduce_kernels.h"

namespace starling {

void shm_reduce_scatter(LocalTeam& team, const Operation& operation, const void* in, void* out, size_t count,
                        int divisor) {
  const int p = team.size();
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<std::byte*>(out);
  const size_t bytes = count * size_of(operation.type);
  const size_t step = kSlotBytes / static_cast<size_t>(p) / 64 * 64;  // bytes of one rank's part in a chunk
  const auto length = [&](size_t chunk) { return std::min(step, bytes - chunk * step); };
  std::vector<const void*> sources(p);
  const auto reduce_to = [&](std::byte* target, size_t length, bool stream) {
    void* const destinations[1] = {target};
    reduce(Reduction{.sources = sources,
                     .destinations = destinations,
                     .count = length / size_of(operation.type),
                     .type = operation.type,
                     .op = summed(operation.op),
                     .divisor = divisor,
                     .stream = stream});
  };
  const auto fill = [&](size_t chunk) {
    std::byte* slot = team.slot(team.rank(), team.next_chunk() + chunk);
    for (int r = 0; r < p; ++r) {
      if (r != team.rank()) copy_bytes(slot + r * step, from + r * bytes + chunk * step, length(chunk));
    }
  };
  const uint64_t where = p * bytes > kFlatBytes ? team.locate(in, p * bytes) : kNowhere;
  const bool ahead = where == kNowhere;
  if (ahead) prefill(team, fill);
  team.enter(operation, where, ahead);
  team.count_published(static_cast<uint64_t>(p - 1) * bytes);
  team.count_received(static_cast<uint64_t>(p - 1) * bytes);
  if (team.all_in_windows()) {
    for (int r = 0; r < p; ++r) sources[r] = team.address(team.where(r)) + team.rank() * bytes;
    reduce_to(to, bytes, p * bytes >= stream_bytes());
    team.post_exit();
    team.await_exit_all();
    return;
  }
  run_staged(team, (bytes + step - 1) / step, fill, [&](size_t chunk) {
    for (int r = 0; r < p; ++r) {
      sources[r] = r == team.rank() ? from + r * bytes + chunk * step
                                    : team.slot(r, team.next_chunk() + chunk) + team.rank() * step;
    }
    reduce_to(to + chunk * step, length(chunk), false);
  });
}

}  // namespace starling
