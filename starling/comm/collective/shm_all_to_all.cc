#include "starling/comm/collective/shm_all_to_all.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "starling/comm/collective/staging.h"
#include "starling/comm/reduce/copy_bytes.h"

namespace starling {
namespace {

// Every rank checks the whole matrix, so that all ranks find the same fault. Returns the largest element.
uint64_t check_splits(LocalTeam& team, const Operation& operation) {
  const int p = team.size();
  uint64_t largest = 0;
  for (int from = 0; from < p; ++from) {
    for (int to = 0; to < p; ++to) {
      const uint64_t sent = team.splits(from)[to], expected = team.splits(to)[p + from];
      largest = std::max(largest, sent);
      if (sent == expected) continue;
      team.fail(Failure{fmt::format(
          "{}: {} sends {} bytes to {}, which expects {}; the splits of both must agree", describe(operation),
          team.liveness().name(from), sent, team.liveness().name(to), expected)});
    }
  }
  return largest;
}

uint64_t displacement(const uint64_t* sizes, int index) {
  return std::accumulate(sizes, sizes + index, uint64_t{0});
}

}  // namespace

void shm_all_to_all(LocalTeam& team, const Operation& operation, const void* in,
                    std::span<const uint64_t> in_bytes, void* out, std::span<const uint64_t> out_bytes) {
  const int p = team.size();
  const int me = team.rank();
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<std::byte*>(out);
  team.check_usable();
  std::copy(in_bytes.begin(), in_bytes.end(), team.splits_to_enter());
  std::copy(out_bytes.begin(), out_bytes.end(), team.splits_to_enter() + p);
  team.enter(operation, team.locate(in, displacement(in_bytes.data(), p)), false);
  const uint64_t largest = check_splits(team, operation);
  team.count_published(displacement(in_bytes.data(), p) - in_bytes[me]);
  team.count_received(displacement(out_bytes.data(), p) - out_bytes[me]);
  if (in_bytes[me] > 0) {
    copy_bytes(to + displacement(out_bytes.data(), me), from + displacement(in_bytes.data(), me),
               in_bytes[me]);
  }
  if (team.all_in_windows()) {
    for (int i = 1; i < p; ++i) {
      const int r = (me + i) % p;
      const std::byte* source = team.address(team.where(r)) + displacement(team.splits(r), me);
      copy_bytes(to + displacement(out_bytes.data(), r), source, out_bytes[r]);
    }
    team.post_exit();
    team.await_exit_all();
    return;
  }
  const uint64_t step = kSlotBytes / static_cast<uint64_t>(p) / 64 * 64;
  const auto length = [&](uint64_t bytes, size_t chunk) {
    return bytes > chunk * step ? std::min(step, bytes - chunk * step) : 0;
  };
  const auto fill = [&](size_t chunk) {
    std::byte* slot = team.slot(me, team.next_chunk() + chunk);
    for (int r = 0; r < p; ++r) {
      const uint64_t n = r == me ? 0 : length(in_bytes[r], chunk);
      if (n > 0) copy_bytes(slot + r * step, from + displacement(in_bytes.data(), r) + chunk * step, n);
    }
  };
  run_staged(team, (largest + step - 1) / step, fill, [&](size_t chunk) {
    for (int i = 1; i < p; ++i) {
      const int r = (me + i) % p;
      const uint64_t n = length(out_bytes[r], chunk);
      if (n == 0) continue;
      const std::byte* slot = team.slot(r, team.next_chunk() + chunk);
      copy_bytes(to + displacement(out_bytes.data(), r) + chunk * step, slot + me * step, n);
    }
  });
}

}  // namespace starling
