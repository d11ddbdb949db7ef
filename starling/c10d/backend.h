// StarlingBackend is the c10d::Backend named "starling", over the collectives of starling/comm. It serves CPU
// tensors; NCCL is the backend for CUDA tensors.
//
// Element types and reduce operations: data_type.h lists them. Operations that compute nothing accept tensors
// of any type. The backend copies tensors that are not contiguous, and lists of tensors, to and from a
// contiguous tensor. It uses contiguous tensors in place, and those of allocateTensor() without any copy.
//
// Order: all ranks make equal collective calls in equal order. One thread of the backend executes them in
// this order. If asyncOp is false and no call is pending, the calling thread executes the call before it
// returns. Each peer has one lane for sends and one for receives (comm/work_lanes.h), which progress at the
// same time. Sends and receives therefore complete in any order of the calls on both sides.
//
// Errors: wrong arguments throw Error(kConfig) from the call. Faults (CommError, TimeoutError) come out of
// wait(). The group's timeout ends every operation. A timeout in the options, or one set by setTimeout,
// bounds wait(). The Work of endCoalescing() has no bound of its own.
//
// Hooks: those of c10d's Hooks.hpp, see work_hooks.h. Abort hooks are called before abort() and when an
// operation finds a failure.
//
// Not offered, because a CPU has none of it: memory pools, suspending and resuming memory, and estimates of
// time without execution.
//
// Threads: several threads may call a backend. If they call it at the same time, the order of their calls
// must not matter.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "starling/c10d/c10d_rendezvous.h"
#include "starling/c10d/starling_work.h"
#include "starling/c10d/work_hooks.h"
#include "starling/comm/group.h"
#include "starling/comm/work_lanes.h"

namespace starling {

// The backend of one group.
class StarlingBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  // `rendezvous` says how the group was made, for split() and merge(). Its timeout is that of the group.
  // `store` is the store for shrink(), or null.
  explicit StarlingBackend(std::shared_ptr<Group> group, RendezvousOptions rendezvous = {},
                           StorePtr store = {});
  // Calls shutdown().
  ~StarlingBackend() override;

  // Makes the backend of the ranks that hold `store`. Collective. Errors: as rendezvous_group().
  static c10::intrusive_ptr<StarlingBackend> make(const StorePtr& store, int rank, int size,
                                                  const RendezvousOptions& rendezvous);

  // Makes a backend that has no group before reconfigure(). `rank` and `size` are those of the process group.
  // All ranks must be on one host.
  static c10::intrusive_ptr<StarlingBackend> make_reconfigurable(int rank, int size,
                                                                 const RendezvousOptions& rendezvous);
  // For make_reconfigurable().
  StarlingBackend(int rank, int size, RendezvousOptions rendezvous, std::unique_ptr<LocalRendezvous> point);

  // Returns "starling".
  const std::string getBackendName() const override { return "starling"; }
  // Returns whether the backend has a group.
  bool isInitialized() override;
  // Returns c10d's options of this backend.
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  // Returns the number of the last collective, counted from 1. It is 0 before the first one.
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  // Bounds the wait() of later operations that give no timeout.
  void setTimeout(std::chrono::milliseconds timeout) override;

  // Broadcasts one tensor in place. The tensor has an equal shape on all ranks.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  // Reduces one tensor in place. Sparse tensors can be summed only.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  // Sums one sparse tensor.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  // Reduces one or more tensors of one type in one operation.
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  // Reduces one tensor in place on the root. The tensors of all other ranks do not change.
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;

  // Gathers the input of each rank. The list has getSize() tensors, each with as many elements as the input.
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  // Reduces a list of getSize() tensors and keeps the one of this rank. Each has as many elements as the
  // output.
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  // Like allgather() on the root. On all other ranks the list is empty.
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  // Sends one tensor of the root's list to each rank. On all other ranks the list is empty.
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  // Gathers several tensors of any types. `outputs` has getSize() lists, each with as many tensors as
  // `inputs`.
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;

  // Gathers into one tensor that has getSize() times the elements of the input. c10d's _allgather_base()
  // calls this function. The deprecated names of the coalesced forms call the functions below.
  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override;
  // Reduces one tensor that has getSize() times the elements of the output, and keeps the part of this rank.
  // c10d's _reduce_scatter_base() calls this function.
  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override;
  // Gathers into one tensor of the root, which has getSize() times the elements of the input. c10d's
  // gather_into_tensor() calls this function.
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;
  // Executes all_gather_single() for each pair of tensors under one Work.
  WorkPtr all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) override;
  // Executes reduce_scatter_single() for each pair of tensors under one Work.
  WorkPtr reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;

  // Exchanges parts of one tensor along dim 0. Each list of splits has one number per rank, or is empty for
  // equal parts. c10d's alltoall_base() calls this function.
  WorkPtr all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override;
  // Sends inputs[r] to rank r and receives outputs[r] from it.
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;

  // Sends one tensor. The receiver's tensor has equally many bytes. Sends and receives match by (peer, tag),
  // in order.
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  // Receives one tensor.
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  // Receives the first message with this tag, from any rank. The Work's sourceRank() returns the sender.
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Completes when all ranks have called it.
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  // A barrier that finds missing ranks. Blocks. Rank 0 waits for all other ranks until options.timeout and
  // ends the group if some did not arrive. It then throws TimeoutError, which names the first missing rank
  // or, with `all`, all of them. The calls of the other ranks then throw the message of rank 0.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override;

  // c10d: startCoalescing() and endCoalescing() are offered.
  bool supportsCoalescing() const override { return true; }
  // Begins a set of operations, which one thread calls. They are executed as they are called.
  void startCoalescing() override;
  // Ends the set. The Work completes with the last of its operations.
  WorkPtr endCoalescing() override;

  // c10d: split() and merge() are offered.
  bool supportsSplitting() const override { return true; }
  // Makes a group of some of the ranks, in the order of `ranks`. Collective. Returns null on ranks that are
  // not in the list.
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& options) override;
  // Makes a group of the ranks that hold `store`. Collective. `rank` and `size` are those in the new group.
  BackendPtr merge(const StorePtr& store, const c10::intrusive_ptr<Options>& options, const int& rank,
                   const int& size) override;
  // c10d: shrink() is offered, if the backend was made with a store.
  bool supportsShrinking() const override { return store_.defined(); }
  // Makes a group of the ranks that are not excluded, through the store of this backend. Collective over
  // these ranks. If flags & 1, this backend is aborted first. Errors: Error(kConfig) if the backend has no
  // store or this rank is excluded.
  BackendPtr shrink(const std::vector<int64_t>& excluded, int flags,
                    const c10::intrusive_ptr<Options>& options) override;

  // c10d: reconfigure() is offered by backends of make_reconfigurable().
  bool supportsReconfigure() const override { return point_ != nullptr; }
  // Returns the handle that the processes of a new group exchange.
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  // Makes a group of the processes with the given handles. Collective over these processes. Blocks.
  // Operations that are pending on the previous group are aborted. In an unordered set, the text of the
  // handles determines the order of the ranks.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;

  // Returns a one-dimensional tensor of zeros in memory that the ranks of this host share. Collective over
  // these ranks, in equal order and with equal numbers of bytes. The memory lives at least as long as the
  // tensor. GroupOptions::free_windows says whether it lives until the group ends.
  at::Tensor allocateTensor(long size,
                            at::TensorOptions options) override;  // NOLINT(google-runtime-int): c10d's type
  // c10d: allocateTensor() is offered.
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

  // c10d: new_window() is offered if all ranks are on one host.
  bool supportsWindow() const override;
  // Makes a window for one-sided access (one_sided.h). Collective.
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override;
  // Returns the number and the bytes of the regions that this rank has made for windows and allocateTensor().
  // Regions that have been freed since are included.
  std::unordered_map<std::string, uint64_t> getMemoryStats() override;

  // c10d: abort hooks are offered.
  bool supportsAbortHooks() const override { return true; }
  // Calls `hook` before abort() and when an operation finds a failure.
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override;
  // Removes the hook with this number, if there is one.
  void unregisterAbortHook(int64_t id) override { hooks_->remove_abort_hook(id); }
  // c10d: completion hooks are offered.
  bool supportsCompletionHooks() const override { return true; }
  // Calls `hook` after each operation that succeeds.
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override;
  // Removes the hook with this number, if there is one.
  void unregisterCompletionHook(int64_t id) override { hooks_->remove_completion_hook(id); }
  // Registers the only hook of this kind, before the first operation. It receives each operation that
  // succeeds.
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  // Waits until all operations have ended and their hooks have returned. Not to be called from a hook.
  //
  // Errors: TimeoutError if no operation has ended for the time of setTimeout or, without one, for 2 s more
  // than the group's timeout. The operations continue, and the caller may wait again.
  void waitForPendingWorks() override;
  // Makes later operations measure their Work::getDuration().
  void enableCollectivesTiming() override { hooks_->time_operations(); }

  // Not offered. Throws Error(kConfig) that names an alternative.
  void startTimeEstimate() override;
  // Not offered. Throws Error(kConfig) that names an alternative.
  float endTimeEstimate() override;
  // Not offered. Throws Error(kConfig) that names an alternative.
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  // Not offered. Throws Error(kConfig) that names an alternative.
  void suspend() override;
  // Not offered. Throws Error(kConfig) that names an alternative.
  void resume() override;

  // Returns what ended the group, or SUCCESS.
  c10d::ErrorType getError() override { return error_; }
  // Ends every pending and later operation of this rank with a CommError.
  void abort() override;
  // Leaves the group and ends the threads. Pending operations are aborted, and the group with them. Later
  // calls throw CommError.
  void shutdown() override;

  // The lanes of comm/work_lanes.h. Of a peer, kind 0 has the receives, kind 1 the sends, and larger kinds
  // the operations of a window. Lane (-1, -1) has the collectives, and lane (-1, 0) has recvAnysource(). This
  // type and the functions below are for StarlingWindow.
  using Lane = starling::Lane;
  // Returns the kind of a window's lane.
  static int64_t window_lane(int64_t number, bool sends) { return 2 + 2 * number + (sends ? 1 : 0); }
  // Returns the tag of a window's messages.
  static uint32_t window_tag(int64_t number) { return 0x8000'0000 + static_cast<uint32_t>(number); }
  // Executes an operation.
  using LaneBody = std::function<void(Group&, StarlingWork&)>;
  // Executes body(group, work) after the earlier calls of the lane. `timeout` bounds the wait() of the Work.
  // If it is 0 or less, the bound of setTimeout counts.
  c10::intrusive_ptr<StarlingWork> on_lane(Lane lane, c10d::OpType type, const char* title, Tensors outputs,
                                           bool async, std::chrono::milliseconds timeout, LaneBody body);
  // Executes body(group) as a collective, after the earlier ones.
  WorkPtr in_order(const char* title, const std::function<void(Group&)>& body);
  // Executes body() after the earlier operations of the lane and completes the work. If `async` is false and
  // the lane is idle, the calling thread does so.
  template <typename Body>
  void execute(Lane lane, bool async, const c10::intrusive_ptr<StarlingWork>& work, Body body);
  // Executes the body of an operation. If it throws, notes what ended the group and adds to the error which
  // ranks of the job it concerns.
  void guarded(const std::function<void()>& body);
  // Returns the group. Errors: CommError if there is none.
  std::shared_ptr<Group> group();
  // Calls Group::allocate_window() and counts the window.
  std::shared_ptr<Window> window_of(Group& group, size_t bytes);

 private:
  // Executes body(group) in the order of the calls.
  template <typename CallOptions, typename Body>
  WorkPtr collective(c10d::OpType type, const char* title, const CallOptions& options, Tensors outputs,
                     Body body);
  // Receives the group, the one tensor of `tensors`, and the work. point_to_point() executes it on the lane
  // of the peer and the direction.
  using PointToPointBody = std::function<void(Group&, const at::Tensor&, StarlingWork&)>;
  WorkPtr point_to_point(c10d::OpType type, const char* title, int peer, const Tensors& tensors,
                         PointToPointBody body);
  bool note_coalesced(const c10::intrusive_ptr<StarlingWork>& work);
  void check_rank(const char* operation, int64_t rank) const;
  void check_list(const char* operation, const std::vector<Tensors>& lists, const at::Tensor& each) const;
  void check_no_list(const char* operation, const std::vector<Tensors>& lists) const;
  void check_ratio(const char* operation, const at::Tensor& large, const at::Tensor& small) const;
  int64_t world_rank(int rank) const {
    return rendezvous_.world_ranks.empty() ? rank : rendezvous_.world_ranks[rank];
  }
  // Returns how the ranks `ranks` of this group meet. Empty: the ranks are unknown.
  RendezvousOptions rendezvous_of(const std::vector<int>& ranks,
                                  const c10::intrusive_ptr<Options>& options) const;

  const std::unique_ptr<LocalRendezvous> point_;  // null: not reconfigurable
  mutable std::mutex group_mutex_;
  std::shared_ptr<Group> group_;  // null before reconfigure() and after shutdown(); guarded by group_mutex_
  RendezvousOptions rendezvous_;
  const StorePtr store_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<int64_t> wait_limit_{0};  // milliseconds; 0: none
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  std::atomic<uint64_t> sequence_{0};
  uint64_t monitored_ = 0;  // monitored barriers so far
  std::mutex coalesced_mutex_;
  std::optional<std::vector<c10::intrusive_ptr<StarlingWork>>> coalesced_;  // guarded by coalesced_mutex_
  std::atomic<uint64_t> p2p_sequence_{0};
  int any_source_first_ = 0;  // the rank at which recvAnysource() begins to look; used on its lane only
  int64_t windows_ = 0;       // number of windows made by new_window()
  std::atomic<uint64_t> shared_regions_{0}, shared_bytes_{0};
  const std::shared_ptr<WorkHooks> hooks_ = std::make_shared<WorkHooks>();
  WorkLanes lanes_{"the backend starling has been shut down; make a new process group"};
};

}  // namespace starling
