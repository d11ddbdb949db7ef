// StarlingBackend: the c10d::Backend named "starling", over the engine of starling/comm. CPU tensors; NCCL is the
// backend for CUDA.
//
// Element types and reduce operations: data_type.h. Tensors that are not contiguous (and lists of tensors) are copied to
// and from a contiguous one; contiguous tensors are used in place, and those of allocateTensor() without any copy.
// Order: all ranks make the same collective calls in the same order. One thread of the backend carries them out in that
// order; a call with asyncOp false, made while nothing is pending, is carried out by its caller before it returns. Each
// peer has a thread for sends and one for receives, started at the first of them, so sends and receives of any order on
// both sides end.
// Errors: wrong arguments throw Error(kConfig) from the call. Faults (CommError, TimeoutError) come out of wait(). The
// engine's timeout ends every operation; a timeout in the options bounds wait().
// Threads: as c10d asks: calls from one thread at a time or ordered by the caller.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "starling/c10d/work_queue.h"
#include "starling/comm/group.h"

namespace starling {

class StarlingBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  explicit StarlingBackend(std::shared_ptr<Group> group);
  ~StarlingBackend() override;  // shutdown()

  const std::string getBackendName() const override { return "starling"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  // Of the last collective, from 1.
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  // One tensor, the same shape on all ranks; in place.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
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

  // The large tensor has getSize() times the elements of the small one. Also _allgather_base, _reduce_scatter_base.
  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override;

  // Splits along dim 0, one a rank, or none for equal ones. Also alltoall_base.
  WorkPtr all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;

  // One tensor of the same bytes on both sides; matched by (peer, tag) in order.
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;

  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Collective over the ranks of this host, in the same order on all, with the same bytes: a one-dimensional tensor of
  // zeros in memory that they share. Its memory lives as long as the group or the tensor, whichever is longer.
  at::Tensor allocateTensor(long size,
                            at::TensorOptions options) override;  // NOLINT(google-runtime-int): c10d's type
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

  // Ends every pending and later operation of this rank with a CommError.
  void abort() override;
  // Ends the threads. Operations still pending are aborted, and with them the group. Later calls throw CommError.
  void shutdown() override;

 private:
  // body(group): carried out in the order of the calls.
  template <typename CallOptions, typename Body>
  WorkPtr collective(c10d::OpType type, const char* title, const CallOptions& options, Tensors outputs,
                     Body body);
  WorkPtr mail(c10d::OpType type, const char* title, int peer, const at::Tensor& tensor,
               std::function<void()> body);
  void check_rank(const char* operation, int64_t rank) const;
  void check_list(const char* operation, const std::vector<Tensors>& lists, const at::Tensor& each) const;
  void check_no_list(const char* operation, const std::vector<Tensors>& lists) const;

  const std::shared_ptr<Group> group_;
  std::atomic<uint64_t> sequence_{0};
  std::mutex mail_mutex_;
  // By (peer, whether it sends).
  std::map<std::pair<int, bool>, std::unique_ptr<WorkQueue>> mail_;  // guarded by mail_mutex_
  uint64_t mail_sequence_ = 0;                                       // guarded by mail_mutex_
  bool mail_stopped_ = false;                                        // guarded by mail_mutex_
  WorkQueue collectives_;
};

}  // namespace starling
