#include "starling/nn/zoo/embedding_table.h"

#include <ATen/ops/embedding.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include "starling/nn/tensor_parallel/shard_vocabulary.h"

namespace starling {

EmbeddingTable::EmbeddingTable(int64_t entries, int64_t width) {
  weight = register_parameter("weight", torch::empty({entries, width}));
  torch::nn::init::normal_(weight, 0.0, 0.02);
}

at::Tensor EmbeddingTable::vectors_of(const at::Tensor& tokens) const {
  if (!add_parts_) return at::embedding(weight, tokens);
  return add_parts_(partial_embedding(tokens, weight, begin_));
}

int64_t EmbeddingTable::shard(ModelSharder& sharder) {
  add_parts_ = sum_region(sharder.group(), sharder.name_of(*this));
  begin_ = sharder.rows_of_table(weight);
  return begin_;
}

TensorFunction shard_vocabulary(ModelSharder& sharder, int64_t begin) {
  TensorGroup& group = sharder.group();
  const std::string head = "head";
  sharder.model().loss = [begin, &group, head](const at::Tensor& logits, const at::Tensor& target) {
    return vocabulary_cross_entropy(logits, target, begin, group, head);
  };
  return enter_region(group, head);
}

}  // namespace starling
