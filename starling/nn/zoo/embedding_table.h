// The token embedding of the zoo's text models, and its division among the ranks of a tensor axis.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "starling/nn/tensor_parallel/regions.h"
#include "starling/nn/tensor_parallel/shard_model.h"

namespace starling {

// A table of vectors, the parameter "weight" [entries, width], drawn from N(0, 0.02²).
class EmbeddingTable : public torch::nn::Module {
 public:
  EmbeddingTable(int64_t entries, int64_t width);
  // Returns the vectors [n, t, width] of tokens [n, t] int64. If the table is sharded, each rank finds the
  // vectors of its tokens, and the ranks add them.
  at::Tensor vectors_of(const at::Tensor& tokens) const;
  // Shards the table by rows. Returns the first row of this rank.
  int64_t shard(ModelSharder& sharder);

  at::Tensor weight;

 private:
  int64_t begin_ = 0;
  TensorFunction add_parts_;  // empty if the table is whole
};

// Makes the model's loss that of a sharded vocabulary, of which this rank has the entries from `begin` on.
// Returns the function that the input of the output layer must pass.
TensorFunction shard_vocabulary(ModelSharder& sharder, int64_t begin);

}  // namespace starling
