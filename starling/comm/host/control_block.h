// The control block: the state that one rank shows to the ranks of its host.
//
// It lies at the start of the rank's region of the control window. Every rank reads all control blocks. Only
// the owner writes to its block, with three exceptions: FlagLine::sleepers, `claim`, and the counter kExit of
// a part that another rank has claimed. Memory filled with zeros is the initial state. Layout for p local
// ranks:
//
//   ControlBlock | ring_head[p] | ring_tail[p] | splits[2][2p]
//
// ring_head[q]: the bytes that the owner has put into its ring to rank q (comm/host/local_messages.h).
// ring_tail[q]: the bytes that the owner has taken out of the ring from rank q to the owner.
// splits: the sizes of an all-to-all in bytes, for even and for odd rounds. First come the p sizes that the
// owner sends, then the p sizes that it expects.
// A round is one collective of the LocalTeam (comm/host/local_team.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "starling/comm/host/flags.h"
#include "starling/comm/host/local_sync.h"
#include "starling/comm/operation.h"

namespace starling {

// RankStatus says whether the owner takes part. A rank that fails sets kWriting, writes the reason, then sets
// kFailed.
enum class RankStatus : uint32_t { kAlive, kWriting, kFailed, kLeft };

// RankState says whether a rank takes part, and why not. reason, culprit and is_timeout are valid once status
// is kFailed.
struct RankState {
  alignas(64) std::atomic<uint32_t> status;
  int32_t culprit;      // the rank in the group that is at fault; -1: unknown
  uint32_t is_timeout;  // the error is a TimeoutError
  std::atomic<uint32_t> pid;
  std::atomic<uint64_t> pid_space;  // the pid namespace in which `pid` is a number; 0: unknown
  char reason[1000];
};

// EntryLine announces that a rank has entered a round. FlagLine::value is the last round that was entered on
// this line.
//
// Each rank has two lines, for even and for odd rounds. A rank may be in round n + 1 while another rank still
// reads its line of round n. It is never in round n + 2 by then.
struct EntryLine : FlagLine {
  Operation operation;
  uint64_t where;      // a location in a window (local_team.h), or kNowhere
  uint32_t prefilled;  // not 0: the first chunk already lies in its staging slot
};
static_assert(sizeof(EntryLine) == 64, "one transfer of a cache line carries an entry");

// Stage names the progress counters of a rank. kFilled and kWorked belong to the staged pipeline
// (comm/collective/staging.h). kNodeReduced and kAllReduced belong to comm/collective/shm_numa_all_reduce.h.
// kExit ends collectives that work in windows.
enum Stage : int { kFilled, kWorked, kNodeReduced, kAllReduced, kExit, kStages };

// How many windows may wait for their release at the same time.
constexpr size_t kReleaseSlots = 1024;

// ControlBlock is the part of the state whose size does not depend on the number of ranks.
struct ControlBlock {
  RankState state;
  EntryLine entry[2];
  FlagLine stage[kStages];
  alignas(64) std::atomic<uint64_t> claim;  // round << 16 | the local rank that executes the owner's part
  FlagLine sync[LocalSync::kCounters];
  // Which windows the owner has dropped. Window w has slot w % kReleaseSlots, which counts up to
  // w / kReleaseSlots + 1 when the window is dropped.
  std::atomic<uint32_t> released[kReleaseSlots];
};

// ControlLayout computes the addresses within a region of the control window.
class ControlLayout {
 public:
  // `local_size` is the number of local ranks.
  explicit ControlLayout(int local_size) : p_(local_size) {}
  // The size of a region in bytes.
  size_t bytes() const {
    return sizeof(ControlBlock) + 2 * p_ * sizeof(FlagLine) + 4 * p_ * sizeof(uint64_t);
  }
  // The control block of the region's owner.
  static ControlBlock& block(std::byte* region) { return *reinterpret_cast<ControlBlock*>(region); }
  // The head of the ring from the region's owner to `peer`.
  FlagLine& ring_head(std::byte* region, int peer) const { return lines(region)[peer]; }
  // The tail of the ring from `peer` to the region's owner.
  FlagLine& ring_tail(std::byte* region, int peer) const { return lines(region)[p_ + peer]; }
  // The 2 p sizes that the region's owner shows for an all-to-all in `round`.
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
