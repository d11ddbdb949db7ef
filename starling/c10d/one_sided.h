// StarlingWindow is c10d's one-sided access (c10d::Window) to tensors of the ranks of one host, in memory
// that they share.
//
// A registered tensor moves to shared memory as with torch's share_memory_(): the tensor and its views stay
// valid, and addresses taken before become invalid. put() copies into a peer's tensor, and
// map_remote_tensor() returns a peer's tensor. A rank that waits for a signal sees what the sender put before
// the signal. Each wait_signal() takes one signal, in order.
//
// Order: operations that concern one peer are executed in the order of the calls. Puts and signals form one
// sequence, and waits form another. If `async` is false and no call of the sequence is pending, the calling
// thread executes the operation.
//
// Errors: wrong arguments throw Error(kConfig) from the call. Faults come out of the Work's wait(), as for
// the backend's sends.
//
// Threads: all functions may be called from any thread. One thread at a time calls tensor_register and
// tensor_deregister.
#pragma once

#include <torch/csrc/distributed/c10d/Window.hpp>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "starling/c10d/backend.h"

namespace starling {

// The window of one rank.
class StarlingWindow final : public c10d::Window {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `number` is the index of this window among those of the backend, equal on all ranks. The window keeps the
  // backend alive.
  StarlingWindow(c10::intrusive_ptr<StarlingBackend> backend, int64_t number);

  // Registers a contiguous CPU tensor of equal shape and type on all ranks. Collective. `owning` says whether
  // the window keeps the tensor. The window keeps the tensor's memory in either case.
  void tensor_register(const at::Tensor& tensor, bool owning = true) override;
  // Ends the access to the tensor. Collective; waits for all ranks. The tensor stays in shared memory.
  void tensor_deregister() override;

  // Copies a tensor of any strides into a peer's tensor. `offset` counts elements of the registered tensor.
  // With `async`, do not change the tensor before the operation ends.
  WorkPtr put(const at::Tensor& tensor, int64_t peer, int64_t offset, bool async,
              const c10d::PutOptions& options = {}) override;
  // Returns the registered tensor of any rank, this one included. The caller orders reads and writes by
  // signals or collectives.
  at::Tensor map_remote_tensor(int64_t rank) override;

  // Sends a signal to a peer.
  WorkPtr signal(int64_t peer, bool async, const c10d::SignalOptions& options = {}) override;
  // Waits for a signal from a peer. If options.timeout ends the wait, the Work throws TimeoutError and the
  // group continues. Without options.timeout the group's timeout ends the wait and the group.
  WorkPtr wait_signal(int64_t peer, bool async, const c10d::WaitSignalOptions& options = {}) override;
  // Returns what c10d asks about the access to a peer.
  c10d::WindowAttr get_attr(int64_t peer) override;

 private:
  struct Registered {
    std::weak_ptr<Group> group;
    std::shared_ptr<starling::Window> memory;
    std::vector<size_t> offsets;  // by rank: where its tensor begins in its region, in bytes
    std::vector<int64_t> sizes;
    at::ScalarType type = at::kFloat;
    int64_t count = 0;  // elements
    at::Tensor tensor;  // undefined if the window does not own it
  };

  // Returns what is registered. Errors: Error(kConfig) if nothing is, or if the group has no such rank.
  std::shared_ptr<const Registered> registered(const char* operation, int64_t rank) const;
  WorkPtr signals(const char* operation, int64_t peer, bool sends, bool async,
                  std::chrono::milliseconds limit);

  const c10::intrusive_ptr<StarlingBackend> backend_;
  const int64_t number_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Registered> registered_;  // guarded by mutex_
};

}  // namespace starling
