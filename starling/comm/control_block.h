// The control block: what one rank shows the ranks of its host, at the start of its region of the control window.
// Written by its owner only (but for `claim` and the exit of a part that another has claimed), read by all; zero-filled memory is its initial state. Layout for p local ranks:
//
//   ControlBlock | ring_head[p] | ring_tail[p] | splits[2][2p]
//
// ring_head[q]: bytes that the owner has put into its ring to q; ring_tail[q]: bytes that it has taken out of q's ring
// to it (ring.h). splits: the uneven sizes of an all-to-all in bytes, p that the owner sends, then p that it
// expects; of even and odd rounds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "starling/comm/flags.h"
#include "starling/comm/local_sync.h"
#include "starling/comm/operation.h"

namespace starling {

// Whether the owner takes part. The text and culprit are published by the store of kFailed.
enum class RankStatus : uint32_t { kAlive, kWriting, kFailed, kLeft };

struct RankState {
  alignas(64) std::atomic<uint32_t> status;
  int32_t culprit;      // global rank at fault, -1: none known
  uint32_t is_timeout;  // the error is a TimeoutError
  std::atomic<uint32_t> pid;
  char reason[1008];
};

// A rank's entry into a collective. Two of them, for even and odd rounds: a rank may be in round n + 1 while another
// still reads its line of round n, but never in n + 2.
// FlagLine::value is the round that was entered last on this line.
struct EntryLine : FlagLine {
  Operation operation;
  uint64_t where;      // a location in a window (local_team.h), or kNowhere
  uint32_t prefilled;  // the first chunk lies in its staging slot already
};
static_assert(sizeof(EntryLine) == 64, "one transfer of a cache line carries an entry");

// The counters of the staged pipeline (staging.h), of the two levels of shm_numa_all_reduce.h, and of the exit of zero-copy collectives.
enum Stage : int { kFilled, kWorked, kNodeReduced, kAllReduced, kExit, kStages };

struct ControlBlock {
  RankState state;
  EntryLine entry[2];
  FlagLine stage[kStages];
  alignas(64)
      std::atomic<uint64_t> claim;  // round << 16 | the local rank that carries out the owner's part of it
  FlagLine sync[LocalSync::kSlots];
};

class ControlLayout {
 public:
  explicit ControlLayout(int local_size) : p_(local_size) {}
  size_t bytes() const {
    return sizeof(ControlBlock) + 2 * p_ * sizeof(FlagLine) + 4 * p_ * sizeof(uint64_t);
  }
  static ControlBlock& block(std::byte* region) { return *reinterpret_cast<ControlBlock*>(region); }
  FlagLine& ring_head(std::byte* region, int peer) const { return lines(region)[peer]; }
  FlagLine& ring_tail(std::byte* region, int peer) const { return lines(region)[p_ + peer]; }
  uint64_t* splits(std::byte* region, uint64_t round) const {
    return reinterpret_cast<uint64_t*>(lines(region) + 2 * p_) + (round % 2) * 2 * p_;
  }

 private:
  static FlagLine* lines(std::byte* region) {
    return reinterpret_cast<FlagLine*>(region + sizeof(ControlBlock));
  }
  size_t p_;
};

}  // namespace starling
