// FlatMemory holds the parameters, gradients and optimizer states of a replica in flat ranges of memory. The
// module's tensors are views of these ranges.
//
// Sharded (OptimizerShare::kSharded): the ranks of a host have one common copy of parameters and states, in
// shared memory. An update is a transaction (design decision 2). It reads side `current` and writes the other
// side, and commit() makes that other side current. If a rank dies during an update, the current side is
// still complete.
//
// Replicated: each rank has its own copy, which is updated in place or, if transactional, on two sides.
//
// If there are several ranks on the host, gradients lie in windows, so that peers read them without a copy.
//
// Every view keeps its memory alive, also after FlatMemory and its group are destroyed. So a module that a
// program still holds after a run can be read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

// Settings of FlatMemory.
struct FlatMemoryOptions {
  size_t total = 0;                     // elements of one flat range (FlatLayout::total)
  int states = 0;                       // number of optimizer states per parameter
  at::ScalarType master = at::kFloat;   // type of parameters and states: float or double
  at::ScalarType working = at::kFloat;  // type in which the module computes: master, or bfloat16
  bool sharded = false;                 // whether the ranks of the host have one common copy
  // Whether replicated memory has two sides, too, so that an interrupted update leaves one side complete.
  bool transactional = false;
  int threads = 1;  // number of gradient ranges per rank, one per thread
};

// The flat ranges of one rank. Not thread-safe.
class FlatMemory {
 public:
  // Collective over the group's ranks on this host. The group must outlive this object.
  FlatMemory(Group& group, const FlatMemoryOptions& options);

  // The settings.
  const FlatMemoryOptions& options() const { return options_; }
  // The master parameters: a flat range of `total` elements, on the current side or, if `next`, on the side
  // that an update writes.
  void* parameters(bool next) const { return side(next); }
  // Optimizer state `i`, a flat range of `total` elements.
  void* state(int i, bool next) const;
  // The working copy of the parameters, a flat range of `total` elements. Null if working == master.
  void* working(bool next) const;
  // The gradients of a local rank's thread `thread`, of type `working`.
  void* gradients(int local_rank, int thread) const;

  // A view of the master parameters on the current side. After commit() it shows the new current side. `like`
  // gives shape and strides (dense: contiguous or channels-last).
  at::Tensor master_view(size_t offset, const at::Tensor& like) const;
  // A view of the working copy on the current side, like master_view(). Shows the master parameters if
  // working == master.
  at::Tensor working_view(size_t offset, const at::Tensor& like) const;
  // A view of optimizer state `i` on the current side, like master_view().
  at::Tensor state_view(int i, size_t offset, const at::Tensor& like) const;
  // A view of the gradients of this rank's thread `thread`.
  at::Tensor gradient_view(int thread, size_t offset, const at::Tensor& like) const;

  // Makes the other side current if there are two sides. Sharded memory also records `step` as the last
  // complete update.
  void commit(int64_t step);

 private:
  // Side 0 begins at base_. Side 1, if any, follows it.
  std::byte* side(bool next) const {
    return base_ + (two_sides() && next != (current_ == 1) ? side_bytes_ : 0);
  }
  bool two_sides() const { return options_.sharded || options_.transactional; }
  at::Tensor flat_tensor(void* data, at::ScalarType type, const std::shared_ptr<void>& owner) const;
  void point_storages();

  FlatMemoryOptions options_;
  Group& group_;
  size_t master_bytes_ = 0, working_bytes_ = 0, side_bytes_ = 0, gradient_bytes_ = 0;
  std::shared_ptr<Window> shared_, gradient_window_;
  std::shared_ptr<std::byte> own_;            // replicated parameters and states
  std::shared_ptr<std::byte> own_gradients_;  // if this rank is alone on its host
  std::shared_ptr<void> owner_;               // of the memory at base_: shared_ or own_
  std::byte* base_ = nullptr;
  int current_ = 0;
  at::Tensor flat_master_, flat_working_;
  std::vector<at::Tensor> flat_states_;
};

}  // namespace starling
