// TensorGroup is a group of ranks over which layers are sharded. It offers collectives on tensors, and counts
// per layer what these move.
//
// All ranks call the same operations in the same order: forward in the model's order, backward in the reverse
// order. The shapes of the tensors follow from the division. One thread calls the operations. Errors: those
// of the group's collectives.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/tensor_parallel/tensor_slice.h"

namespace starling {

// What this rank received for a layer since reset_traffic() (TrafficCount::received). For n elements on t
// ranks an all-reduce receives 2 (t - 1)/t n, as in a ring.
struct LayerTraffic {
  double elements = 0;
  double bytes = 0;
  int64_t calls = 0;
};

// Collectives on tensors over one group. Not thread-safe.
class TensorGroup {
 public:
  // `group` and `clock` must outlive this object.
  TensorGroup(Group& group, const Clock& clock) : group_(group), clock_(clock) {}

  // Sets a function that the object calls if an operation throws, before the error reaches the caller. The
  // function may end the process. A program's own loop needs it, because the operations run in its forward
  // and backward passes, where no code of Starling catches their errors.
  void on_fault(std::function<void()> handler) { on_fault_ = std::move(handler); }

  // This rank in the group.
  int rank() const { return group_.rank(); }
  // The number of ranks in the group.
  int size() const { return group_.size(); }
  // The group below.
  Group& group() { return group_; }

  // Returns the elementwise sum over the ranks in a new tensor, bit-identical on all ranks. The traffic is
  // counted under `layer`.
  at::Tensor sum(const at::Tensor& x, const std::string& layer);
  // Returns the elementwise maximum over the ranks in a new tensor.
  at::Tensor maximum(const at::Tensor& x, const std::string& layer);
  // Returns the tensor of all parts in a new tensor. Each rank gives its part (part_of_range) of `whole`
  // entries along `dim`, which is at least 0.
  at::Tensor gather(const at::Tensor& part, int64_t dim, int64_t whole, const std::string& layer);
  // Returns this rank's part of the elementwise sum. The ranks' parts are equally large and lie along
  // dimension 0.
  at::Tensor sum_scatter(const at::Tensor& x, const std::string& layer);
  // Sends pieces[r] to rank r. Returns what each rank sent, by rank; `sizes` gives the shapes of these
  // tensors. All pieces have one dtype.
  std::vector<at::Tensor> exchange(const std::vector<at::Tensor>& pieces,
                                   const std::vector<std::vector<int64_t>>& sizes, const std::string& layer);

  // The traffic by layer since reset_traffic().
  const std::map<std::string, LayerTraffic>& traffic() const { return traffic_; }
  double seconds() const { return seconds_; }  // time spent in the collectives of all operations
  // Sets traffic() and seconds() to zero.
  void reset_traffic();

 private:
  template <typename F>
  void guarded(const F& operation);
  template <typename F>
  void measured(const std::string& layer, size_t element_bytes, F operation);
  at::Tensor all_reduce(const at::Tensor& x, ReduceOp op, const std::string& layer);
  std::byte* window(size_t bytes);

  Group& group_;
  const Clock& clock_;
  std::shared_ptr<Window> window_;  // the memory in which all-reduces run
  std::map<std::string, LayerTraffic> traffic_;
  double seconds_ = 0;
  std::function<void()> on_fault_;
};

}  // namespace starling
