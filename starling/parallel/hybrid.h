// Hybrid: data parallelism for most layers and model parallelism for some fully connected layers, over one
// group of ranks.
//
// (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv 1404.5997. FireCaffe
// chooses by layer in this way.) Let g_k be the gradient of rank k's mean loss. The step equals a step of one
// process with the whole batch:
//
//   data-parallel parameters    w   := w − lr · U(1/p Σ_k g_k)       on every rank, after an all-reduce
//   model-parallel parameters   w_r := w_r − lr · U(1/p Σ_k g_k[r])  on the rank that holds slice r
//
// A model-parallel layer sees the samples of all ranks (nn/tensor_parallel/shard_for_all_samples.h). Its
// gradient is therefore already the sum. Collectives run on the thread of backward, so they do not overlap
// with computation.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/tensor_parallel/tensor_group.h"
#include "starling/nn/tensor_parallel/tensor_slice.h"
#include "starling/parallel/replica/flat_replica.h"
#include "starling/parallel/replica/replica_strategy.h"
#include "starling/parallel/strategy.h"

namespace starling {

// Settings of Hybrid.
struct HybridOptions {
  std::vector<std::string> layers;  // names of the model-parallel layers
  FlatReplicaOptions replica;       // clip_norm limits the norm of the whole model's gradient
};

// The strategy of train.hybrid. Not thread-safe.
class Hybrid final : public Strategy {
 public:
  // Collective. All ranks start with the parameters that the seed gives. The group and the clock must outlive
  // this object. Errors: ConfigError (train.hybrid) if the model has no layer of a given name.
  Hybrid(const ModelFactory& factory, UpdateRule rule, const HybridOptions& options, Group& group,
         const Clock& clock);

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  // Gathers the whole model on every rank until the next step. Running statistics become their mean over the
  // ranks.
  void consensus() override;
  // Collective. Returns whole tensors by name on rank 0 and an empty state on all other ranks.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // The whole model. Its parameters are valid from consensus() until the next begin_step().
  Replica& evaluated() override { return whole_; }

  // Returns these values of the last step. "model_parallel/<layer>" is the number of bytes that this rank
  // received for a model-parallel layer, and model_parallel_bytes is their sum. data_parallel_bytes counts
  // the bytes that this rank received for the sums of all other gradients. data_parallel_formula is 2 |W| (p
  // − 1)/p of those gradients. model_parallel_layers is the number of model-parallel layers.
  // held_bytes and whole_bytes are the parameters of this rank and of the whole model.
  StrategyStats strategy_stats() override;

 private:
  // A run of consecutive parameters of one kind in flat memory, in elements.
  struct Range {
    int64_t begin = 0, end = 0;
    bool model_parallel = false;
  };

  bool is_sliced(const std::string& parameter) const { return slices_.count(parameter) > 0; }
  void find_ranges();
  void check_shape(const Batch& batch);
  double clip_scale();
  at::Tensor whole_of(const std::string& parameter, const at::Tensor& part);
  void let_go();
  void collect(const at::Tensor& flat, const std::string& prefix, std::map<std::string, at::Tensor>& out);

  HybridOptions options_;
  Group& group_;
  const Clock& clock_;
  TensorGroup layers_;
  TensorSlices slices_;  // declared before replica_, whose factory fills it
  FlatReplica replica_;
  Replica whole_;
  bool gathered_ = true;
  std::vector<Range> ranges_;
  std::map<std::string, LayerTraffic> traffic_;  // of the last step
  Step step_;
  std::vector<int64_t> shape_;  // of the inputs of the first batch, without the samples
  double own_loss_ = 0, forward_backward_s_ = 0;
};

}  // namespace starling
