// Tensor parallelism (Shoeybi et al., Megatron-LM, arXiv 1909.08053): transforms an ordinary, freshly made
// model into one rank's part of it. Each of the t ranks of a group holds a part of the large parameters, and
// all ranks compute the same batch together. The function that the model computes does not change.
//
//   by columns   x ──f──► x W_r + b_r              each rank computes some of the outputs
//   by rows      y_r W_r ──g──► Σ_r y_r W_r + b    each rank holds some of the inputs
//   gathered     by columns, then the outputs of all ranks are gathered: any layer may follow
//
// regions.h defines f and g. A layer by columns, then elementwise functions, then a layer by rows costs one
// all-reduce in forward and one in backward. Every starling::Linear (by output feature) and starling::Conv2d
// (by output channel) is gathered, unless a TensorShardable module or a TensorPlan shards it in another way.
// Each rank holds all other layers whole (normalization, libtorch's own layers) and computes them alike.
// Their gradients are equal on all ranks, bit for bit. A TensorPlan shards torch::nn::Linear layers by name,
// too (plain_linear.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "starling/nn/layers/linear.h"
#include "starling/nn/model.h"
#include "starling/nn/tensor_parallel/regions.h"
#include "starling/nn/tensor_parallel/tensor_group.h"
#include "starling/nn/tensor_parallel/tensor_plan.h"
#include "starling/nn/tensor_parallel/tensor_slice.h"

namespace torch::nn {
class LinearImpl;
}

namespace starling {

class Conv2dImpl;

// The result of shard_model().
struct ModelSharding {
  TensorSlices slices;
  int64_t transformer_layers = 0;  // 0 if the model has none
  int64_t width = 0;               // width of the transformer's activations
  // What the names of the modules in transformer layers begin with, for example "transformer.h.". The number
  // of the layer follows. Empty if the model has none.
  std::string transformer_prefix;
};

// What shard_model() does with a model without a layer that can be sharded.
enum class WholeModel { kRefuse, kAllow };

// ModelSharder shards the layers of one model. Each layer may be sharded once. Not thread-safe.
class ModelSharder {
 public:
  // The group must outlive the model.
  ModelSharder(Model& model, TensorGroup& group);

  // This rank in the group.
  int rank() const { return group_.rank(); }
  // The number of ranks in the group.
  int size() const { return group_.size(); }
  // The group that shards the model.
  TensorGroup& group() { return group_; }

  // Shards a layer by output feature. `sections` is the number of matrices that lie side by side in the
  // outputs; each of them is sharded separately.
  void by_columns(LinearImpl& layer, int64_t sections = 1);
  // Shards layers that take one input by output feature. Returns the function that this input must pass
  // once, before all of them. Its traffic is counted under `name`.
  TensorFunction by_columns(const std::vector<LinearImpl*>& layers, const std::string& name);
  // Shards a layer by input feature.
  void by_rows(LinearImpl& layer);
  // Shards a layer by output feature and gathers its outputs.
  void gathered(LinearImpl& layer);
  // Shards a layer of libtorch's.
  void shard_plain(torch::nn::LinearImpl& layer, LayerCut cut);
  // Shards the fully connected layers that the plan names. A layer by rows that gets whole inputs takes this
  // rank's part of them. Errors: ConfigError for a pattern that matches no layer, and for a layer that its
  // module has sharded. ConfigError also for a layer that is registered in several places.
  void by_plan(const TensorPlan& plan);
  // Shards a convolution by output channel and gathers its outputs.
  void gathered(Conv2dImpl& layer);
  // Shards layers that follow one another with elementwise functions between them: by columns, by rows, by
  // columns, and so on. A last layer without a partner is gathered.
  void in_pairs(const std::vector<LinearImpl*>& layers);
  // Replaces a table by this rank's rows and returns the index of the first of them.
  int64_t rows_of_table(at::Tensor& table);

  // Returns the name of a module in the model.
  const std::string& name_of(const torch::nn::Module& module) const;

  // The model that is sharded.
  Model& model() { return model_; }
  // What has been sharded so far.
  ModelSharding sharding;

 private:
  void check_not_sharded(const torch::nn::Module& layer);
  void cut_columns(LinearImpl& layer, int64_t sections);
  void cut(at::Tensor& parameter, int64_t dim, int64_t sections);
  bool is_sharded(const torch::nn::Module& layer) const { return sharded_.count(&layer) > 0; }
  // The exchange of a layer by rows whose input is whole or sharded.
  LayerExchange rows_of_any_input(const std::string& name, int64_t inputs);
  void divide_named(const std::string& name, torch::nn::Module& layer, LayerCut cut);
  friend ModelSharding shard_model(Model& model, TensorGroup& group, const TensorPlan& plan,
                                   WholeModel whole);

  Model& model_;
  TensorGroup& group_;
  std::unordered_map<const torch::nn::Module*, std::string> modules_;
  std::unordered_map<const c10::TensorImpl*, std::string> parameters_;
  std::unordered_set<const torch::nn::Module*> sharded_;
};

// A module that knows the best sharding of the layers below it. Layers that shard() does not shard are
// gathered.
class TensorShardable {
 public:
  virtual ~TensorShardable() = default;
  // Shards the layers below this module.
  virtual void shard(ModelSharder& sharder) = 0;
};

// Transforms `model` into this rank's part. `plan` names fully connected layers and says how each of them is
// sharded. The group must outlive the model. Errors: ConfigError if a layer has fewer outputs than there are
// ranks, or if a convolution is grouped. ConfigError also if the model has no layer that can be sharded,
// unless `whole` is kAllow. The errors of by_plan() apply, too.
ModelSharding shard_model(Model& model, TensorGroup& group, const TensorPlan& plan = {},
                          WholeModel whole = WholeModel::kRefuse);

}  // namespace starling
