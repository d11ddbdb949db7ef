// StarlingWindow: one-sided access (c10d::Window) to tensors of the ranks of one host, in memory that they share.
//
// A registered tensor moves into shared memory, as torch's share_memory_() moves one: the tensor and its views stay, addresses
// taken before are void. put() copies into a peer's tensor, map_remote_tensor() is a peer's tensor. Who waits for a signal sees
// what the signaller put before it: wait_signal() takes one signal a call, in order.
// Order: what concerns one peer is carried out in the order of the calls, puts and signals on one side, waits on the other. A call
// with asyncOp false, made while nothing is pending there, is carried out by its caller.
// Errors: wrong arguments throw Error(kConfig) from the call; faults come out of the Work's wait(), as of the backend's sends.
// Threads: all functions may be called from any thread; tensor_register and tensor_deregister by one at a time.
#pragma once

#include <torch/csrc/distributed/c10d/Window.hpp>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "starling/c10d/backend.h"

namespace starling {

class StarlingWindow final : public c10d::Window {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // number: of this window among those of the backend, the same on all ranks. Keeps the backend alive.
  StarlingWindow(c10::intrusive_ptr<StarlingBackend> backend, int64_t number);

  // Collective. A contiguous CPU tensor, of one shape and type on all ranks. owning: the window keeps the tensor; its memory it
  // keeps in either case.
  void tensor_register(const at::Tensor& tensor, bool owning = true) override;
  // Collective; waits for all ranks. The tensor stays where it is.
  void tensor_deregister() override;

  // offset: in elements of the registered tensor. The tensor may have any strides. asyncOp: do not change it before the end.
  WorkPtr put(const at::Tensor& tensor, int64_t peer, int64_t offset, bool async,
              const c10d::PutOptions& options = {}) override;
  // The registered tensor of `rank`, this one's included: reads and writes are the caller's to order, by signals or collectives.
  at::Tensor map_remote_tensor(int64_t rank) override;

  // To and from other ranks. options.timeout ends the wait for a signal with a TimeoutError, and the group goes on; without one
  // the engine's timeout does, and ends the group.
  WorkPtr signal(int64_t peer, bool async, const c10d::SignalOptions& options = {}) override;
  WorkPtr wait_signal(int64_t peer, bool async, const c10d::WaitSignalOptions& options = {}) override;
  c10d::WindowAttr get_attr(int64_t peer) override;

 private:
  struct Registered {
    std::weak_ptr<Group> group;
    std::shared_ptr<starling::Window> memory;
    std::vector<size_t> offsets;  // by rank: where its tensor begins in its region, bytes
    std::vector<int64_t> sizes;
    at::ScalarType type = at::kFloat;
    int64_t count = 0;  // elements
    at::Tensor tensor;  // undefined where the window does not own it
  };

  // Error(kConfig) where none is, or the rank is none of the group's.
  std::shared_ptr<const Registered> registered(const char* operation, int64_t rank) const;
  WorkPtr signals(const char* operation, int64_t peer, bool sends, bool async,
                  std::chrono::milliseconds limit);

  const c10::intrusive_ptr<StarlingBackend> backend_;
  const int64_t number_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Registered> registered_;  // guarded by mutex_
};

}  // namespace starling
