// StarlingBackend: the c10d::Backend named "starling", over the engine of starling/comm. CPU tensors; NCCL is the
// backend for CUDA.
//
// Element types and reduce operations: data_type.h; where nothing is computed, tensors of any type. Tensors that are not
// contiguous (and lists of tensors) are copied to and from a contiguous one; contiguous tensors are used in place, and those
// of allocateTensor() without any copy.
// Order: all ranks make the same collective calls in the same order. One thread of the backend carries them out in that
// order; a call with asyncOp false, made while nothing is pending, is carried out by its caller before it returns. Each
// peer has a thread for sends and one for receives, started at the first of them, so sends and receives of any order on
// both sides end.
// Errors: wrong arguments throw Error(kConfig) from the call. Faults (CommError, TimeoutError) come out of wait(). The
// engine's timeout ends every operation; a timeout in the options, or set by setTimeout, bounds wait().
// Hooks: Hooks.hpp of c10d, see work_hooks.h; abort hooks run before abort() and where an operation finds a failure.
// Not offered, for a CPU has none of it: memory pools, suspend and resume of memory, and estimates of time without running.
// Threads: calls may come from several threads; what several threads call at the same time on one backend must be such that
// its order does not matter.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "starling/c10d/meeting.h"
#include "starling/c10d/work_hooks.h"
#include "starling/c10d/work_queue.h"
#include "starling/comm/group.h"

namespace starling {

class StarlingBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  // meeting: how the group was made, for split and merge; its timeout is that of the group.
  explicit StarlingBackend(std::shared_ptr<Group> group, MeetingOptions meeting = {}, StorePtr store = {});
  ~StarlingBackend() override;  // shutdown()

  // Collective: the backend of the ranks that hold `store`. Errors as meet().
  static c10::intrusive_ptr<StarlingBackend> make(const StorePtr& store, int rank, int size,
                                                  const MeetingOptions& meeting);

  // One that has no group before reconfigure(); rank and size are those of the process group. Ranks of one host.
  static c10::intrusive_ptr<StarlingBackend> make_reconfigurable(int rank, int size,
                                                                 const MeetingOptions& meeting);
  StarlingBackend(int rank, int size, MeetingOptions meeting, std::unique_ptr<MeetingPoint> point);

  const std::string getBackendName() const override { return "starling"; }
  bool isInitialized() override;
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  // Of the last collective, from 1.
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  // One tensor, the same shape on all ranks; in place.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  // Also sparse tensors, summed only.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  // Any number of tensors of one type, reduced as one.
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  // In place on the root; other ranks' tensors stay as they are.
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;

  // List forms: one list of getSize() tensors, all with as many elements as the single tensor.
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  // On the root as allgather and reduce_scatter; on other ranks the list is empty.
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  // getSize() lists of as many tensors as there are inputs, of any types.
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;

  // The large tensor has getSize() times the elements of the small one. Also _allgather_base, _reduce_scatter_base,
  // gather_into_tensor and the deprecated names of the coalesced forms.
  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override;
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;
  // As many of these, one after another, under one Work.
  WorkPtr all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;

  // Splits along dim 0, one a rank, or none for equal ones. Also alltoall_base.
  WorkPtr all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;

  // One tensor of the same bytes on both sides; matched by (peer, tag) in order.
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  // The first message with this tag, from whomever; the Work's sourceRank() tells.
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  // Blocks. Rank 0 waits until options.timeout for the others and ends the group where some did not come: TimeoutError on
  // rank 0 that names the first of them, or with `all` every one; the others' wait ends with what rank 0 found.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override;

  // What is called between the two, by one thread, is carried out meanwhile; the Work ends with the last of it.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // Groups of some of the ranks. split: in the order of `ranks`; null for others. merge: rank and size in the new group.
  // shrink: the ranks that are left, by the store that this backend was made with; flags & 1 aborts this one before.
  bool supportsSplitting() const override { return true; }
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& options) override;
  BackendPtr merge(const StorePtr& store, const c10::intrusive_ptr<Options>& options, const int& rank,
                   const int& size) override;
  bool supportsShrinking() const override { return store_.defined(); }
  BackendPtr shrink(const std::vector<int64_t>& excluded, int flags,
                    const c10::intrusive_ptr<Options>& options) override;

  // Only of make_reconfigurable. Collective over those with the handles; blocks; what is pending on the group before is
  // aborted. An unordered set of handles gets its ranks in the order of their text.
  bool supportsReconfigure() const override { return point_ != nullptr; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;

  // Collective over the ranks of this host, in the same order on all, with the same bytes: a one-dimensional tensor of
  // zeros in memory that they share. Its memory lives as long as the group or the tensor, whichever is longer.
  at::Tensor allocateTensor(long size,
                            at::TensorOptions options) override;  // NOLINT(google-runtime-int): c10d's type
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

  // One-sided access, where all ranks are of one host: one_sided.h. Collective.
  bool supportsWindow() const override;
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override;
  // Windows and allocateTensor: how many, and the bytes of this rank's regions. They live as long as the group.
  std::unordered_map<std::string, uint64_t> getMemoryStats() override;

  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override;
  void unregisterAbortHook(int64_t id) override { hooks_->remove_abort_hook(id); }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(int64_t id) override { hooks_->remove_completion_hook(id); }
  // One, told of every operation that succeeded; before the first operation.
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  // Until all operations have ended and their hooks have run. TimeoutError where none has ended for as long as setTimeout says,
  // else for somewhat more than the group's timeout; they go on, and may be waited for again. Not from a hook.
  void waitForPendingWorks() override;
  // Work::getDuration() of later operations.
  void enableCollectivesTiming() override { hooks_->time_operations(); }

  // These throw Error(kConfig) that says what to use instead.
  void startTimeEstimate() override;
  float endTimeEstimate() override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  void suspend() override;
  void resume() override;

  // What ended the group, once something has.
  c10d::ErrorType getError() override { return error_; }
  // Ends every pending and later operation of this rank with a CommError.
  void abort() override;
  // Leaves the group and ends the threads. Operations still pending are aborted, and with them the group. Later calls
  // throw CommError.
  void shutdown() override;

  // For StarlingWindow. A lane is an order of calls of its own: a peer (-1: any) and a kind.
  struct Lane {
    int peer;
    int64_t kind;  // 0: receives, 1: sends, more: a window's
    auto operator<=>(const Lane&) const = default;
  };
  static int64_t window_lane(int64_t number, bool sends) { return 2 + 2 * number + (sends ? 1 : 0); }
  static uint32_t window_tag(int64_t number) { return 0x8000'0000 + static_cast<uint32_t>(number); }
  // body(group, work), after the earlier ones of this lane. timeout: of the wait() of its Work; 0 or less: that of setTimeout.
  using LaneBody = std::function<void(Group&, StarlingWork&)>;
  c10::intrusive_ptr<StarlingWork> on_lane(Lane lane, c10d::OpType type, const char* title, Tensors outputs,
                                           bool async, std::chrono::milliseconds timeout, LaneBody body);
  // body(group), as a collective, after the earlier ones.
  WorkPtr in_order(const char* title, const std::function<void(Group&)>& body);
  // Runs an operation's body; notes what ends the group and says which ranks of the job it is of.
  void guarded(const std::function<void()>& body);
  std::shared_ptr<Group> group();  // CommError where there is none
  // Group::allocate_window(), counted.
  std::shared_ptr<Window> window_of(Group& group, size_t bytes);

 private:
  // body(group): carried out in the order of the calls.
  template <typename CallOptions, typename Body>
  WorkPtr collective(c10d::OpType type, const char* title, const CallOptions& options, Tensors outputs,
                     Body body);
  // body(group, tensor, work), of the one tensor of `tensors`, on the peer's lane of this direction.
  using MailBody = std::function<void(Group&, const at::Tensor&, StarlingWork&)>;
  WorkPtr mail(c10d::OpType type, const char* title, int peer, const Tensors& tensors, MailBody body);
  bool note_coalesced(const c10::intrusive_ptr<StarlingWork>& work);
  void check_rank(const char* operation, int64_t rank) const;
  void check_list(const char* operation, const std::vector<Tensors>& lists, const at::Tensor& each) const;
  void check_no_list(const char* operation, const std::vector<Tensors>& lists) const;
  void check_ratio(const char* operation, const at::Tensor& large, const at::Tensor& small) const;
  int64_t world_rank(int rank) const {
    return meeting_.world_ranks.empty() ? rank : meeting_.world_ranks[rank];
  }
  // How the ranks `ranks` of this group, or unknown ones where empty, meet.
  MeetingOptions meeting_of(const std::vector<int>& ranks, const c10::intrusive_ptr<Options>& options) const;

  const std::unique_ptr<MeetingPoint> point_;  // null: not to be reconfigured
  mutable std::mutex group_mutex_;
  std::shared_ptr<Group> group_;  // null before reconfigure() and after shutdown(); guarded by group_mutex_
  MeetingOptions meeting_;
  const StorePtr store_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<int64_t> wait_limit_{0};  // milliseconds; 0: none
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  std::atomic<uint64_t> sequence_{0};
  uint64_t monitored_ = 0;  // barriers so far
  std::mutex coalesced_mutex_;
  std::optional<std::vector<c10::intrusive_ptr<StarlingWork>>> coalesced_;  // guarded by coalesced_mutex_
  std::mutex mail_mutex_;
  std::map<Lane, std::unique_ptr<WorkQueue>> mail_;  // guarded by mail_mutex_
  uint64_t mail_sequence_ = 0;                       // guarded by mail_mutex_
  bool mail_stopped_ = false;                        // guarded by mail_mutex_
  int64_t windows_ = 0;                              // made by new_window()
  std::atomic<uint64_t> shared_regions_{0}, shared_bytes_{0};
  const std::shared_ptr<WorkHooks> hooks_ = std::make_shared<WorkHooks>();
  WorkQueue collectives_;
};

}  // namespace starling
