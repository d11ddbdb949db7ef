// LocalTeam: the ranks of one host, and the operations that their collectives are made of.
//
// It lets ranks compare their operations (enter), and gives them stage counters, staging slots and locations
// in windows. Every wait ends with an Error if a rank is late, dead or in another collective. The algorithms
// are in comm/collective/shm_*.h.
//
// Round: every collective of the team is one round. Rounds are counted from 1. enter() is a barrier: a rank
// that leaves it knows that all ranks have finished the previous round.
// Slot: a part of the staging window that holds one chunk of a tensor.
// Threads: one thread at a time carries out rounds. Any thread may call LocalSync's functions and fail().
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/comm/host/control_block.h"
#include "starling/comm/host/liveness.h"
#include "starling/comm/host/numa.h"

namespace starling {

constexpr uint64_t kNowhere = ~uint64_t{0};  // the location of memory outside every window
constexpr size_t kSlotBytes = 256 * 1024;    // the size of a staging slot: one chunk of the staged pipeline
constexpr int kStagingSlots = 4;             // per rank
constexpr size_t kStagingBytes = kStagingSlots * kSlotBytes;
// Collectives stage tensors up to this size even if they lie in windows, which saves one of two
// synchronizations. The all-reduce has limits of its own (comm/collective/shm_direct_all_reduce.cc).
constexpr size_t kFlatBytes = 16 * 1024;

// LocalTeamSetup is what a LocalTeam is made of.
struct LocalTeamSetup {
  int local_rank = 0;
  std::vector<int> ranks;  // the ranks in the group, ascending
  std::string host;
  std::vector<int> numa_of;         // the NUMA node of each rank, -1: none; empty: none for all ranks
  std::shared_ptr<Window> control;  // ControlLayout(ranks.size()).bytes() bytes per region, zero
  std::shared_ptr<Window> staging;  // kStagingBytes per region
  std::chrono::milliseconds timeout{60'000};
  WaitPolicy policy;
  bool shared_cores = false;  // there are more ranks than cores; equal on all ranks
  // Returns a fault that shows elsewhere (a socket, the store). It is called about every 20 ms of waiting.
  std::function<std::optional<Failure>()> outside;
  std::function<void(const std::string&)> warn;  // GroupOptions::warn
};

// LocalTeam is one rank's view of the ranks of its host. Ranks are local ranks here.
class LocalTeam final : public LocalSync {
 public:
  // It is a collective and returns when all ranks have arrived.
  explicit LocalTeam(LocalTeamSetup setup);
  // Tells the other ranks that this rank has left.
  ~LocalTeam() override;

  int rank() const override { return me_; }
  int size() const override { return size_; }
  void post(int counter, uint64_t value) override;
  uint64_t peek(int rank, int counter) const override;
  void wait(int rank, int counter, uint64_t value, const std::string& what) override;

  // Publishes this rank's operation and waits until all ranks have entered. If the operations differ, all
  // ranks get a CommError. `where` is locate(tensor). `prefilled` says that the first chunk has been staged
  // already.
  void enter(const Operation& operation, uint64_t where, bool prefilled);
  // After enter(): the location that rank r has published.
  uint64_t where(int r) const { return entry(r).where; }
  // After enter(): whether rank r has staged its first chunk already.
  bool prefilled(int r) const { return entry(r).prefilled != 0; }
  // After enter(): whether the tensors of all ranks lie in windows.
  bool all_in_windows() const;

  // Sets this rank's counter of `stage`, which must grow.
  void post_stage(Stage stage, uint64_t value);
  // Waits until rank r's counter of `stage` is at least `value`.
  void await_stage(Stage stage, int r, uint64_t value);
  // Waits until the counters of all ranks are at least `value`.
  void await_stage_all(Stage stage, uint64_t value);
  // For stages that each rank passes once per round: the counter is the number of the round.
  void post_round(Stage stage) { post_stage(stage, round_); }
  void await_round(Stage stage, int r) { await_stage(stage, r, round_); }
  // For the end of a collective in windows: this rank no longer uses the memory of other ranks.
  void post_exit() { post_round(kExit); }
  // Waits until all ranks have called post_exit() in this round.
  void await_exit_all() { await_stage_all(kExit, round_); }
  // Work stealing. Part r of a round belongs to rank r, but any rank may execute it.
  // If ranks share cores, a running rank executes the parts of ranks that wait for a core.
  //
  // claim() returns true if the calling rank must execute `part`. It must then call post_part(part).
  // claim() returns false for the part of a rank that has failed: such a rank gave the round up.
  // await_parts() returns when all parts are done. It throws CommError if the owner of an unclaimed part has
  // failed.
  bool claim(int part);
  void post_part(int part) { starling::post(block(part).stage[kExit], round_); }
  void await_parts();

  // All rounds number their chunks in one sequence. Chunk k lies in slot k % kStagingSlots of each rank.
  // next_chunk() is the number of the round's first chunk.
  uint64_t next_chunk() const { return next_chunk_; }
  // Adds the `n` chunks of this round at its end.
  void count_chunks(uint64_t n) { next_chunk_ += n; }
  // All ranks have finished the chunks below this number.
  uint64_t settled_chunk() const { return first_chunk_; }
  // The staging slot of rank r for chunk number `chunk`.
  std::byte* slot(int r, uint64_t chunk) const {
    return staging_->region(r) + chunk % kStagingSlots * kSlotBytes;
  }
  // The 2 p sizes of an all-to-all that this rank writes before enter() (comm/host/control_block.h).
  uint64_t* splits_to_enter() const { return layout_.splits(control_->region(me_), round_ + 1); }
  // After enter(): the 2 p sizes of rank r.
  const uint64_t* splits(int r) const { return layout_.splits(control_->region(r), round_); }

  // Frees the windows of add_window() that all ranks have dropped, and shows the other ranks what this rank
  // has dropped. If GroupOptions::free_windows is set, the Engine calls it before and after the exchange that
  // makes a new window.
  void free_windows();
  // Makes a window known to locate(). All ranks add their windows in the same order. Any thread may call it.
  void add_window(std::shared_ptr<Window> window);
  // Returns the location of [data, data + bytes) if all of it lies in one window, else kNowhere.
  uint64_t locate(const void* data, size_t bytes) const;
  // Returns the address of a location in this process.
  std::byte* address(uint64_t where) const;

  // The head of the ring from `owner` to `peer` (comm/host/local_messages.h).
  FlagLine& ring_head(int owner, int peer) const { return layout_.ring_head(control_->region(owner), peer); }
  // The tail of the ring from `peer` to `owner`.
  FlagLine& ring_tail(int owner, int peer) const { return layout_.ring_tail(control_->region(owner), peer); }

  // The ranks by NUMA node. `nodes` is empty unless two levels are worthwhile.
  const NumaPlaces& numa() const { return numa_; }
  // How this rank waits.
  const WaitPolicy& policy() const { return setup_.policy; }
  // Says how this rank waits in the following rounds. Call it from the thread that executes them. The waits
  // of LocalSync are not affected.
  void wait_in_rounds_by(const WaitPolicy& policy) { round_policy_ = policy; }
  // Whether the host has more ranks than cores.
  bool shared_cores() const { return setup_.shared_cores; }
  // How long a wait may last.
  std::chrono::milliseconds timeout() const { return setup_.timeout; }
  // Gives the warning of late_warning(what) to GroupOptions::warn.
  void warn_late(const std::string& what) const;
  // Lengthens the waits that begin from now on, those of LocalSync included, by `extra`. The caller sets it
  // while other ranks of the host wait for the network themselves.
  void set_extra_patience(std::chrono::milliseconds extra) { extra_patience_ = extra; }
  // What this rank knows about the other ranks of the host.
  Liveness& liveness() { return liveness_; }
  // Returns a failure here or elsewhere (LocalTeamSetup::outside) that ends a wait for local rank `awaited`,
  // or nothing. -1: for no particular rank.
  std::optional<Failure> trouble(int awaited);
  // Records the failure for all ranks of the host and throws it.
  [[noreturn]] void fail(const Failure& failure);
  // Throws this rank's failure if it has failed.
  void check_usable() const;

  // Counts bytes that this rank has published to its peers, once for each of them (TrafficCount). The bytes
  // of a part count for its owner, whichever rank executed the part.
  void count_published(uint64_t bytes) { published_.fetch_add(bytes, std::memory_order_relaxed); }
  // Counts bytes that peers have published to this rank.
  void count_received(uint64_t bytes) { received_.fetch_add(bytes, std::memory_order_relaxed); }
  // Counts the published and received bytes that passed between NUMA nodes.
  void count_far(uint64_t bytes) { far_.fetch_add(bytes, std::memory_order_relaxed); }
  // The bytes that were counted so far.
  uint64_t published() const { return published_.load(std::memory_order_relaxed); }
  uint64_t received() const { return received_.load(std::memory_order_relaxed); }
  uint64_t far() const { return far_.load(std::memory_order_relaxed); }

 private:
  EntryLine& entry(int r) const { return block(r).entry[round_ % 2]; }
  ControlBlock& block(int r) const { return ControlLayout::block(control_->region(r)); }
  // Waits until flag >= value, as a part of a round. `late` returns what rank r did not do.
  template <typename Late>
  void await(FlagLine& flag, uint64_t value, int r, const Late& late) {
    if (flag.value.load(std::memory_order_acquire) < value) await_slowly(flag, value, r, round_policy_, late);
  }
  void await_slowly(FlagLine& flag, uint64_t value, int r, const WaitPolicy& policy,
                    const std::function<std::string()>& late);
  void check_agreement();
  std::string who_has_not_entered() const;
  std::string who_has_not_finished(int r) const;

  const LocalTeamSetup setup_;
  const std::shared_ptr<Window> control_;
  const std::shared_ptr<Window> staging_;
  const ControlLayout layout_;
  const int me_;
  const int size_;
  const NumaPlaces numa_;
  Liveness liveness_;
  WaitPolicy round_policy_;
  uint64_t round_ = 0;
  uint64_t next_chunk_ = 0;
  uint64_t first_chunk_ = 0;  // the first chunk of the last round that was entered
  Operation current_;
  std::atomic<std::chrono::milliseconds> extra_patience_{std::chrono::milliseconds{0}};
  mutable std::mutex windows_mutex_;
  std::vector<std::shared_ptr<Window>> windows_;  // null: freed
  std::atomic<uint64_t> published_{0};
  std::atomic<uint64_t> received_{0};
  std::atomic<uint64_t> far_{0};
};

}  // namespace starling
