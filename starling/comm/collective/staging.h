// The staged pipeline: tensors in ordinary memory pass through the staging slots of a host's ranks, in
// chunks.
//
//   fill(k): puts chunk k of this rank's tensor into its slot
//   work(k): reads the slots of all ranks and, if there is a drain, writes to them
//   drain(k): takes the result out of this rank's slot after all ranks have worked on chunk k
//
// A rank calls fill(k + 1) before work(k), and work(k) before drain(k - 1). A rank that waits therefore finds
// the other ranks one step ahead. A slot is filled again when all ranks have worked on its last chunk,
// kStagingSlots chunks ago. Without a drain, a collective of one chunk costs one synchronization: the chunk
// is filled before enter(), which publishes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "starling/comm/host/local_team.h"

namespace starling {

// Waits until this rank's slot for chunk `number` may be overwritten.
inline void await_free_slot(LocalTeam& team, uint64_t number) {
  if (number < kStagingSlots || number - kStagingSlots < team.settled_chunk()) return;
  team.await_stage_all(kWorked, number - kStagingSlots + 1);
}

// Fills the first chunk. The caller then calls enter(operation, where, true).
template <typename Fill>
void prefill(LocalTeam& team, const Fill& fill) {
  team.check_usable();
  await_free_slot(team, team.next_chunk());
  fill(0);
}

// Waits until all ranks have filled chunk `chunk` of this round. `first` is the number of the round's first
// chunk.
inline void await_filled(LocalTeam& team, uint64_t first, size_t chunk) {
  for (int r = 0; r < team.size(); ++r) {
    if (r == team.rank() || (chunk == 0 && team.prefilled(r))) continue;
    team.await_stage(kFilled, r, first + chunk + 1);
  }
}

// NoDrain means that work() leaves nothing to take out of the slots.
struct NoDrain {
  // Does nothing.
  void operator()(size_t) const {}
};

// Passes the chunks 0 … chunks - 1 through the slots. It is called after enter(). Chunk k has the number
// team.next_chunk() + k.
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

// Slice is a range [begin, end) of elements.
struct Slice {
  size_t begin;
  size_t end;
  // The number of elements.
  size_t count() const { return end - begin; }
};

// Returns part `index` of `count` elements that are divided into `parts` parts. The cuts are at multiples of
// `align` elements.
inline Slice slice_of(size_t count, int parts, int index, size_t align) {
  const size_t blocks = (count + align - 1) / align;
  const auto cut = [&](int i) { return std::min(count, blocks * static_cast<size_t>(i) / parts * align); };
  return {cut(index), cut(index + 1)};
}

}  // namespace starling
