// Batch normalisation over [n, c, h, w] whose statistics may be those of the batches of all replicas
// together:
//   y = (x - mean_c) / sqrt(var_c + eps) * weight_c + bias_c
// Synced: forward adds (sum x, sum x^2, count) over the replicas in one tensor, backward (sum dy, sum dy
// xhat); the result equals one process's batch norm over the concatenated batch. Gradients of weight and bias
// stay local sums, as those of every parameter: the strategy adds them up.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>

namespace starling {

// Adds the tensor (fp64, one-dimensional) over the replicas in place; all call it in the same order: forward
// in the model's order, backward in the reverse, from the thread that runs backward. May throw; then forward
// or backward does.
using SumOverReplicas = std::function<void(at::Tensor&)>;

// Parameters and buffers of torch::nn::BatchNorm2d: weight, bias, running_mean, running_var,
// num_batches_tracked (which stays int64 when the module changes its dtype). momentum 0.1, eps 1e-5.
class BatchNorm2d : public torch::nn::Module {
 public:
  explicit BatchNorm2d(int64_t channels);
  // Normalises by the batch's statistics while training, by the running ones in evaluation.
  at::Tensor forward(const at::Tensor& x);

  // From now on the statistics of training are summed over replicas; an empty function makes them local
  // again.
  void sum_statistics_with(SumOverReplicas sum) { sum_ = std::move(sum); }

  using torch::nn::Module::to;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;

  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 private:
  SumOverReplicas sum_;
};

// Syncs every BatchNorm2d above in `module`. Errors: ConfigError naming the first layer of libtorch's own
// batch norm: a member that the user holds cannot be replaced (design decision 10).
void sync_batch_norm(torch::nn::Module& module, const SumOverReplicas& sum);

}  // namespace starling
