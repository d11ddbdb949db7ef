// FlatMemory: the parameters, gradients and optimizer states of a replica as flat ranges of memory, of which the module's
// tensors are views.
//
// Divided (OptimizerShare::kDivided): the ranks of a host hold one copy of parameters and states between them, in
// shared memory. An update is a transaction (design decision 2): it reads side `current` and writes the other side;
// commit() makes that side current. A rank that dies in the middle leaves the current side whole.
// Replicated: each rank has its own copy, updated in place; or, transactional, on two sides as well.
// Gradients lie in windows whenever there are several ranks on the host, so that peers read them without a copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

struct FlatMemoryOptions {
  size_t total = 0;                     // elements of one flat range (FlatLayout::total)
  int states = 0;                       // optimizer states a parameter
  at::ScalarType master = at::kFloat;   // type of parameters and states: float or double
  at::ScalarType working = at::kFloat;  // type in which the module computes: master, or bfloat16
  bool divided = false;
  bool transactional =
      false;        // two sides also where nothing is divided: an update that breaks off leaves one whole
  int members = 1;  // gradient ranges of each rank (threads that hold a mini-batch each)
};

class FlatMemory {
 public:
  // Collective over the group's ranks on this host.
  FlatMemory(Group& group, const FlatMemoryOptions& options);

  const FlatMemoryOptions& options() const { return options_; }
  // Flat ranges of `total` elements. Null for the working copy where working == master.
  void* parameters(bool next) const { return side(next); }
  void* state(int i, bool next) const;
  void* working(bool next) const;
  // The gradients of local rank `r`, member `m`; type `working`.
  void* gradients(int local_rank, int member) const;

  // Tensors over the current side; they follow commit() to the other side, whose data they then show.
  // `like` gives shape and strides (dense: contiguous or channels-last).
  at::Tensor master_view(size_t offset, const at::Tensor& like) const;
  at::Tensor working_view(size_t offset, const at::Tensor& like) const;
  at::Tensor state_view(int i, size_t offset, const at::Tensor& like) const;
  // Tensor over this rank's gradients of `member`.
  at::Tensor gradient_view(int member, size_t offset, const at::Tensor& like) const;

  // The other side becomes the current one (where there are two; nothing to do otherwise). `step` is recorded as the last
  // whole update.
  void commit(int64_t step);

 private:
  // Side 0 begins at base_, side 1 behind it, where there are two.
  std::byte* side(bool next) const {
    return base_ + (two_sides() && next != (current_ == 1) ? side_bytes_ : 0);
  }
  bool two_sides() const { return options_.divided || options_.transactional; }
  void point_storages();

  FlatMemoryOptions options_;
  Group& group_;
  size_t master_bytes_ = 0, working_bytes_ = 0, side_bytes_ = 0, gradient_bytes_ = 0;
  std::shared_ptr<Window> shared_, gradient_window_;
  std::shared_ptr<std::byte> own_;            // replicated parameters and states
  std::shared_ptr<std::byte> own_gradients_;  // alone on the host
  std::byte* base_ = nullptr;
  int current_ = 0;
  at::Tensor flat_master_, flat_working_;
  std::vector<at::Tensor> flat_states_;
};

}  // namespace starling
