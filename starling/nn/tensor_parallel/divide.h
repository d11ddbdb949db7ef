// Tensor parallelism of a model (Shoeybi et al., Megatron-LM, arXiv 1909.08053): a transformation of an ordinary, freshly made
// model into one rank's part of it. The t ranks of a group hold a part of the large parameters each and compute the same batch
// together; what the model computes stays the same.
//
//   by columns   x ──f──► x W_r + b_r              each rank some of the outputs
//   by rows      y_r W_r ──g──► Σ_r y_r W_r + b    each rank some of the inputs
//   gathered     by columns, then the outputs of all ranks: any layer may follow
//
// (f, g: regions.h.) Columns and then rows, with elementwise functions between, cost one all-reduce forward and one backward.
// Every starling::Linear (by output feature) and starling::Conv2d (by output channel) is gathered, unless the module above it
// knows better: TensorDivisible. What is neither (normalisation, libtorch's own layers) every rank holds whole and computes
// alike; its gradients are equal on all ranks, bit for bit.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "starling/nn/conv.h"
#include "starling/nn/linear.h"
#include "starling/nn/model.h"
#include "starling/nn/tensor_parallel/tensor_group.h"
#include "starling/nn/tensor_parallel/tensor_slice.h"

namespace starling {

// What divide_model() did.
struct Division {
  TensorSlices slices;
  int64_t transformer_layers = 0;  // 0: the model has none
  int64_t width = 0;               // of the transformer's activations
};

// How a model is being divided; each layer once.
class Divider {
 public:
  // The group outlives the model.
  Divider(Model& model, TensorGroup& group);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  TensorGroup& group() { return group_; }

  // sections: matrices side by side in the outputs, each divided by itself.
  void by_columns(Linear& layer, int64_t sections = 1);
  void by_rows(Linear& layer);
  void gathered(Linear& layer);
  void gathered(Conv2d& layer);
  // Layers one after the other with elementwise functions between: columns, rows, columns, rows …; a last one that has no
  // partner is gathered.
  void in_pairs(const std::vector<Linear*>& layers);
  // Rows of a table, which becomes this rank's. Returns the first of them.
  int64_t rows_of_table(at::Tensor& table);

  // The name of a module or parameter in the model.
  const std::string& name_of(const torch::nn::Module& module) const;

  Model& model() { return model_; }
  Division division;

 private:
  void check_not_divided(const torch::nn::Module& layer);
  void cut(at::Tensor& parameter, int64_t dim, int64_t sections);
  bool is_divided(const torch::nn::Module& layer) const { return divided_.count(&layer) > 0; }
  friend Division divide_model(Model& model, TensorGroup& group);

  Model& model_;
  TensorGroup& group_;
  std::unordered_map<const torch::nn::Module*, std::string> modules_;
  std::unordered_map<const c10::TensorImpl*, std::string> parameters_;
  std::unordered_set<const torch::nn::Module*> divided_;
};

// A module that knows how the layers below it are best divided. The layers that it leaves out are gathered.
class TensorDivisible {
 public:
  virtual ~TensorDivisible() = default;
  virtual void divide(Divider& divider) = 0;
};

// Makes `model` the part of this rank. Errors: ConfigError where a layer has fewer outputs than there are ranks, a convolution
// is grouped, or the model has no layer that could be divided.
Division divide_model(Model& model, TensorGroup& group);

}  // namespace starling
