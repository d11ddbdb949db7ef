// LocalTeam: the ranks of one host and what their collectives are made of: agreement on what is called (enter), stage
// counters, staging slots, locations in windows, and waits that end with an Error when a rank is late, dead or in
// another collective. The algorithms are in collective/shm_*.h.
//
// Rounds: every collective of the team is one round, counted from 1. enter() is a barrier: who leaves it knows that all
// ranks have finished the round before.
// Threads: one thread carries out rounds; the LocalSync part and fail() may be called from any.
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

#include "starling/comm/control_block.h"
#include "starling/comm/group.h"
#include "starling/comm/liveness.h"
#include "starling/comm/numa.h"

namespace starling {

constexpr uint64_t kNowhere = ~uint64_t{0};  // memory outside every window
constexpr size_t kSlotBytes = 256 * 1024;    // of one chunk of the staged pipeline
constexpr int kStagingSlots = 4;
constexpr size_t kStagingBytes = kStagingSlots * kSlotBytes;
// Up to this size a tensor is staged even if it lies in a window: one synchronisation instead of two.
constexpr size_t kFlatBytes = 16 * 1024;

struct LocalTeamSetup {
  int local_rank = 0;
  std::vector<int> ranks;  // global, ascending
  std::string host;
  std::vector<int> numa_of;         // the NUMA node of each rank, -1: not bound to one; empty: none is
  std::shared_ptr<Window> control;  // ControlLayout(ranks.size()).bytes() a region, zero
  std::shared_ptr<Window> staging;  // kStagingBytes a region
  std::chrono::milliseconds timeout{60'000};
  WaitPolicy policy;
  bool shared_cores = false;  // more ranks than cores; the same on all ranks
  // Polled about every 20 ms of waiting: a fault that shows elsewhere (a socket, the store).
  std::function<std::optional<Failure>()> outside;
  std::function<void(const std::string&)> warn;  // GroupOptions
};

class LocalTeam final : public LocalSync {
 public:
  // Collective: returns when all have met.
  explicit LocalTeam(LocalTeamSetup setup);
  ~LocalTeam() override;

  int rank() const override { return me_; }
  int size() const override { return size_; }
  void post(int slot, uint64_t value) override;
  uint64_t peek(int rank, int slot) const override;
  void wait(int rank, int slot, uint64_t value, const std::string& what) override;

  // Publishes this rank's operation and waits until all ranks have entered; CommError on all where they differ.
  // `where` is locate(tensor); `prefilled` says that the first chunk was staged before.
  void enter(const Operation& operation, uint64_t where, bool prefilled);
  // After enter(): what rank r said.
  uint64_t where(int r) const { return entry(r).where; }
  bool prefilled(int r) const { return entry(r).prefilled != 0; }
  bool all_in_windows() const;

  void post_stage(Stage stage, uint64_t value);
  // Waits until rank r's stage counter is at least `value`.
  void await_stage(Stage stage, int r, uint64_t value);
  void await_stage_all(Stage stage, uint64_t value);
  // Stages that each rank passes once in a collective that has them.
  void post_round(Stage stage) { post_stage(stage, round_); }
  void await_round(Stage stage, int r) { await_stage(stage, r, round_); }
  // End of a zero-copy collective: this rank has finished with the others' memory.
  void post_exit() { post_round(kExit); }
  void await_exit_all() { await_stage_all(kExit, round_); }
  // The same for parts of the round that any rank may carry out, part r at first rank r's. Where ranks share cores, who has a
  // core does the part of who waits for it. claim: whether this rank is the one; then post_part when it is done. The part of a
  // rank that has failed is left to await_parts, which says so: who gave the round up has not got its result from others.
  bool claim(int part);
  void post_part(int part) { starling::post(block(part).stage[kExit], round_); }
  void await_parts();

  // Chunks of all rounds are numbered in one sequence; chunk k lies in slot k % kSlots of each rank.
  uint64_t next_chunk() const { return next_chunk_; }
  void count_chunks(uint64_t n) { next_chunk_ += n; }
  // All ranks have finished the chunks below this number.
  uint64_t settled_chunk() const { return first_chunk_; }
  std::byte* slot(int r, uint64_t chunk) const {
    return staging_->region(r) + chunk % kStagingSlots * kSlotBytes;
  }
  // 2 p numbers (control_block.h): to be written before enter(), and rank r's after it.
  uint64_t* splits_to_enter() const { return layout_.splits(control_->region(me_), round_ + 1); }
  const uint64_t* splits(int r) const { return layout_.splits(control_->region(r), round_); }

  // Windows known to locate(). From any thread.
  void add_window(std::shared_ptr<Window> window);
  // The location of [data, data + bytes) if it lies in a window whole, else kNowhere.
  uint64_t locate(const void* data, size_t bytes) const;
  std::byte* address(uint64_t where) const;

  FlagLine& ring_head(int owner, int peer) const { return layout_.ring_head(control_->region(owner), peer); }
  FlagLine& ring_tail(int owner, int peer) const { return layout_.ring_tail(control_->region(owner), peer); }

  const NumaPlaces& numa() const { return numa_; }
  const WaitPolicy& policy() const { return setup_.policy; }
  bool shared_cores() const { return setup_.shared_cores; }
  std::chrono::milliseconds timeout() const { return setup_.timeout; }
  // Waits of the following rounds may last longer by this much: while others wait for something themselves.
  void set_extra_patience(std::chrono::milliseconds extra) { extra_patience_ = extra; }
  Liveness& liveness() { return liveness_; }
  // Trouble here or elsewhere (setup.outside) that should end a wait for local rank `awaited` (-1: nobody's).
  std::optional<Failure> trouble(int awaited);
  // Records the failure for all ranks of the host and throws it.
  [[noreturn]] void fail(const Failure& failure);
  void check_usable() const;

  void count_written(uint64_t bytes) { written_.fetch_add(bytes, std::memory_order_relaxed); }
  void count_read(uint64_t bytes) { read_.fetch_add(bytes, std::memory_order_relaxed); }
  // Of both, those of windows on another NUMA node.
  void count_far(uint64_t bytes) { far_.fetch_add(bytes, std::memory_order_relaxed); }
  uint64_t written() const { return written_.load(std::memory_order_relaxed); }
  uint64_t read() const { return read_.load(std::memory_order_relaxed); }
  uint64_t far() const { return far_.load(std::memory_order_relaxed); }

 private:
  EntryLine& entry(int r) const { return block(r).entry[round_ % 2]; }
  ControlBlock& block(int r) const { return ControlLayout::block(control_->region(r)); }
  // Waits for flag >= value of rank r; `late` says what it did not do.
  template <typename Late>
  void await(FlagLine& flag, uint64_t value, int r, const Late& late) {
    if (flag.value.load(std::memory_order_acquire) < value) await_slowly(flag, value, r, late);
  }
  void await_slowly(FlagLine& flag, uint64_t value, int r, const std::function<std::string()>& late);
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
  uint64_t round_ = 0;
  uint64_t next_chunk_ = 0;
  uint64_t first_chunk_ = 0;  // of the round that was entered last
  Operation current_;
  std::atomic<std::chrono::milliseconds> extra_patience_{std::chrono::milliseconds{0}};
  mutable std::mutex windows_mutex_;
  std::vector<std::shared_ptr<Window>> windows_;
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> read_{0};
  std::atomic<uint64_t> far_{0};
};

}  // namespace starling
