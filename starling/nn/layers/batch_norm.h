// Batch normalization over [n, c, h, w]. Its statistics may be those of the batches of all replicas together:
//   y = (x - mean_c) / sqrt(var_c + eps) * weight_c + bias_c
// If the layer is synchronized, forward adds (sum x, sum x^2, count) over the replicas in one tensor.
// Backward adds (sum dy, sum dy xhat). The result equals the batch norm of one process over the concatenated
// batch. Gradients of weight and bias stay local sums, as those of every parameter do: the strategy adds
// them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>

namespace starling {

// Adds a one-dimensional fp64 tensor over the replicas, in place. All replicas call the function in the same
// order: forward in the model's order, backward in the reverse order. The thread that runs backward calls it
// in backward. If the function throws, forward or backward throws.
using SumOverReplicas = std::function<void(at::Tensor&)>;

// BatchNorm2d has the parameters and buffers of torch::nn::BatchNorm2d: weight, bias, running_mean,
// running_var and num_batches_tracked. num_batches_tracked stays int64 when the module changes its dtype. The
// momentum is 0.1, and eps is 1e-5.
class BatchNorm2dImpl : public torch::nn::Module {
 public:
  // Makes the layer for inputs with this number of channels.
  explicit BatchNorm2dImpl(int64_t channels);
  // Normalizes by the batch's statistics in training and by the running statistics in evaluation.
  at::Tensor forward(const at::Tensor& x);

  // Makes training sum its statistics over replicas from now on. An empty function makes the statistics local
  // again.
  void sum_statistics_with(SumOverReplicas sum) { sum_ = std::move(sum); }

  using torch::nn::Module::to;
  // Converts the module as torch::nn::Module does, except that num_batches_tracked stays int64.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  // Converts the module to `dtype` and keeps its device. num_batches_tracked stays int64.
  void to(torch::Dtype dtype, bool non_blocking = false) override;

  at::Tensor weight;               // [channels], the factor
  at::Tensor bias;                 // [channels]
  at::Tensor running_mean;         // [channels], for evaluation
  at::Tensor running_var;          // [channels], for evaluation
  at::Tensor num_batches_tracked;  // one int64: the training batches so far

 private:
  SumOverReplicas sum_;
};

// BatchNorm2d holds a BatchNorm2dImpl, as torch::nn::BatchNorm2d holds a torch::nn::BatchNorm2dImpl.
TORCH_MODULE(BatchNorm2d);

// Calls sum_statistics_with(sum) on every starling::BatchNorm2d in `module`. Errors: ConfigError that names
// the first batch norm of libtorch's own. Such a layer cannot be replaced, because the user may hold a
// reference to it (design decision 10).
void sync_batch_norm(torch::nn::Module& module, const SumOverReplicas& sum);

}  // namespace starling
