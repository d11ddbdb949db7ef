// TensorGroup: a group of ranks that divide layers among them, as operations on tensors. It counts what crosses between the
// ranks and what the waiting costs, by layer.
//
// All ranks call the same operations in the same order, with tensors of the shapes that follow from the division: forward in
// the model's order, backward in the reverse. From one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/tensor_parallel/tensor_slice.h"

namespace starling {

// What a layer's operations moved since reset_traffic(). Elements of all-reduces are those that entered this rank's windows or
// sockets from others and those that it put into theirs: 2 (t - 1)/t n for n elements on t ranks of one host, as in a ring. Of
// the other operations they are those received.
struct LayerTraffic {
  double elements = 0;
  double bytes = 0;
  int64_t calls = 0;
};

class TensorGroup {
 public:
  // Both outlive this.
  TensorGroup(Group& group, const Clock& clock) : group_(group), clock_(clock) {}

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  Group& group() { return group_; }

  // The elementwise sum over the ranks, in a new tensor; bit-identical on all. `layer` is whom the traffic is counted for.
  at::Tensor sum(const at::Tensor& x, const std::string& layer);
  at::Tensor maximum(const at::Tensor& x, const std::string& layer);
  // Each rank has its part (part_of_range) of `whole` entries along `dim`; the tensor of all parts, in a new tensor.
  at::Tensor gather(const at::Tensor& part, int64_t dim, int64_t whole, const std::string& layer);
  // This rank's part (equal on all, along dim 0) of the elementwise sum.
  at::Tensor sum_scatter(const at::Tensor& x, const std::string& layer);
  // Sends pieces[r] to rank r; what the others sent, by rank, of the sizes given. Contiguous pieces of one type.
  std::vector<at::Tensor> exchange(const std::vector<at::Tensor>& pieces,
                                   const std::vector<std::vector<int64_t>>& sizes, const std::string& layer);

  const std::map<std::string, LayerTraffic>& traffic() const { return traffic_; }
  double seconds() const { return seconds_; }  // in all operations
  void reset_traffic();

 private:
  template <typename F>
  void measured(const std::string& layer, bool all_reduce, size_t element_bytes, F operation);
  at::Tensor all_reduce(const at::Tensor& x, ReduceOp op, const std::string& layer);
  std::byte* window(size_t bytes);

  Group& group_;
  const Clock& clock_;
  std::shared_ptr<Window> window_;  // where sums are made
  std::map<std::string, LayerTraffic> traffic_;
  double seconds_ = 0;
};

}  // namespace starling
