// Embedding and loss for a vocabulary that is sharded among ranks (Shoeybi et al., arXiv 1909.08053, section
// 3). Each rank holds the rows [begin, begin + v) of the table.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "starling/nn/tensor_parallel/tensor_group.h"

namespace starling {

// Returns this rank's part of the embedding [n, t, width]; the sum over the ranks is the embedding. `tokens`
// [n, t] are int64 and of the whole vocabulary, and `table` is [v, width]. The part is zero for tokens that
// belong to other ranks. Differentiable in the table.
at::Tensor partial_embedding(const at::Tensor& tokens, const at::Tensor& table, int64_t begin);

// Returns the mean cross-entropy of this rank's columns of the logits, [..., v], and tokens [...] of the
// whole vocabulary. With z = logits and sums over the whole vocabulary:
//   loss = mean(log Σ exp(z − max z) − (z_target − max z)),   dz = (softmax(z) − [target]) / count.
// Ranks exchange three numbers per token instead of the logits. The result is differentiable once and equal
// on all ranks.
at::Tensor vocabulary_cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t begin,
                                    TensorGroup& group, const std::string& layer);

}  // namespace starling
