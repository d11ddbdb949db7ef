// Hybrid: data parallelism for most layers, model parallelism for some fully connected ones, over the same ranks (Krizhevsky,
// One weird trick for parallelizing convolutional neural networks, arXiv 1404.5997; the choice by layer is FireCaffe's). With
// g_k the gradient of rank k's mean loss, the step is that of one process with the whole batch:
//
//   data-parallel parameters    w   := w − lr · U(1/p Σ_k g_k)            on every rank; gradients are summed
//   model-parallel ones         w_r := w_r − lr · U(1/p Σ_k g_k[r])       on the rank that holds the part; the sum is already
//                                                                         there, because its layer saw the samples of all ranks
//
// (nn/tensor_parallel/all_samples.h.) Collectives run on the thread of backward: they do not overlap with computing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/tensor_parallel/tensor_group.h"
#include "starling/nn/tensor_parallel/tensor_slice.h"
#include "starling/parallel/flat_replica.h"
#include "starling/parallel/replica_strategy.h"
#include "starling/parallel/strategy.h"

namespace starling {

struct HybridOptions {
  std::vector<std::string> layers;  // model-parallel ones, by name
  FlatReplicaOptions replica;       // clip_norm is of the whole model's gradient
};

class Hybrid final : public Strategy {
 public:
  // Collective. Every rank begins with the parameters that the seed gives. group and clock outlive this.
  // Errors: ConfigError (train.hybrid) for a layer that there is not.
  Hybrid(const ModelFactory& factory, UpdateRule rule, const HybridOptions& options, Group& group,
         const Clock& clock);

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  // The whole model is on every rank until the next step. Running statistics become their mean.
  void consensus() override;
  // Collective. Complete on rank 0, empty elsewhere; whole tensors under their names.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // The whole model; its parameters are in place between consensus() and the next begin_step().
  Replica& evaluated() { return whole_; }

  // "model_parallel/<layer>": bytes that came to this rank in the last step for a model-parallel layer; their sum
  // model_parallel_bytes; data_parallel_bytes: what entered and left for the sums of the other gradients;
  // data_parallel_formula: 2 |W| (p − 1)/p of these; held_bytes, whole_bytes: of parameters, here and of the whole model.
  Fingerprint fingerprint() const;

 private:
  // A run of neighbours in flat memory.
  struct Range {
    int64_t begin = 0, end = 0;
    bool model_parallel = false;
  };

  bool is_sliced(const std::string& parameter) const { return slices_.count(parameter) > 0; }
  void find_ranges();
  double clip_scale();
  at::Tensor whole_of(const std::string& parameter, const at::Tensor& part);
  void let_go();
  void collect(const at::Tensor& flat, const std::string& prefix, std::map<std::string, at::Tensor>& out);

  HybridOptions options_;
  Group& group_;
  const Clock& clock_;
  TensorGroup layers_;
  TensorSlices slices_;  // before replica_, whose factory fills it
  FlatReplica replica_;
  Replica whole_;
  bool gathered_ = true;
  std::vector<Range> ranges_;
  std::map<std::string, LayerTraffic> traffic_;  // of the last step
  Step step_;
  double own_loss_ = 0, forward_backward_s_ = 0;
};

}  // namespace starling
