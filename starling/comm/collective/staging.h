// The staged pipeline: how tensors in ordinary memory pass through the staging slots of a host's ranks, in chunks.
//
//   fill(k): put chunk k of the own tensor into the own slot
//   work(k): read the slots of all ranks (and, where there is a drain, write to them)
//   drain(k): take the result out of the own slot, after all ranks have worked on chunk k
//
// fill(k + 1) goes before work(k), and that before drain(k - 1): who waits finds the others a step ahead. A slot is
// filled again when all ranks have worked on what it held (kStagingSlots chunks ago).
// A collective of one chunk costs one synchronisation: the chunk is filled before enter(), which publishes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "starling/comm/local_team.h"

namespace starling {

// Waits until this rank's slot of chunk `number` may be overwritten.
inline void await_free_slot(LocalTeam& team, uint64_t number) {
  if (number < kStagingSlots || number - kStagingSlots < team.settled_chunk()) return;
  team.await_stage_all(kWorked, number - kStagingSlots + 1);
}

// Fills the first chunk ahead of enter(operation, where, true).
template <typename Fill>
void prefill(LocalTeam& team, const Fill& fill) {
  team.check_usable();
  await_free_slot(team, team.next_chunk());
  fill(0);
}

inline void await_filled(LocalTeam& team, uint64_t first, size_t chunk) {
  for (int r = 0; r < team.size(); ++r) {
    if (r == team.rank() || (chunk == 0 && team.prefilled(r))) continue;
    team.await_stage(kFilled, r, first + chunk + 1);
  }
}

struct NoDrain {
  void operator()(size_t) const {}
};

// After enter(). Chunks are 0 … chunks - 1; their slots are those of team.next_chunk() + chunk.
template <typename Fill, typename Work, typename Drain = NoDrain>
void run_staged(LocalTeam& team, size_t chunks, const Fill& fill, const Work& work, const Drain& drain = {}) {
  constexpr bool kDrains = !std::is_same_v<Drain, NoDrain>;
  const uint64_t first = team.next_chunk();
  for (size_t step = 0; step < chunks + (kDrains ? 2 : 1); ++step) {
    if (step < chunks && !(step == 0 && team.prefilled(team.rank()))) {
      await_free_slot(team, first + step);
      fill(step);
      team.post_stage(kFilled, first + step + 1);
    }
    if (step >= 1 && step - 1 < chunks) {
      await_filled(team, first, step - 1);
      work(step - 1);
      if (kDrains || chunks > 1) team.post_stage(kWorked, first + step);
    }
    if (kDrains && step >= 2) {
      team.await_stage_all(kWorked, first + step - 1);
      drain(step - 2);
    }
  }
  team.count_chunks(chunks);
}

// Elements [begin, end) of part `index` when `count` elements are divided into `parts` at multiples of `align` elements.
struct Slice {
  size_t begin;
  size_t end;
  size_t count() const { return end - begin; }
};

inline Slice slice_of(size_t count, int parts, int index, size_t align) {
  const size_t blocks = (count + align - 1) / align;
  const auto cut = [&](int i) { return std::min(count, blocks * static_cast<size_t>(i) / parts * align); };
  return {cut(index), cut(index + 1)};
}

}  // namespace starling
