// Embedding and loss whose vocabulary is divided among ranks (Shoeybi et al., arXiv 1909.08053, section 3): each holds the rows
// [begin, begin + v) of the table.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "starling/nn/tensor_parallel/tensor_group.h"

namespace starling {

// tokens [n, t] int64 of the whole vocabulary, table [v, width] -> [n, t, width]: this rank's part of the sum over the ranks,
// zero where the token is another's. Differentiable in the table.
at::Tensor partial_embedding(const at::Tensor& tokens, const at::Tensor& table, int64_t begin);

// Mean cross-entropy of logits [..., v], this rank's columns, and tokens [...] of the whole vocabulary. With z = logits and
// sums over the whole vocabulary,
//   loss = mean(log Σ exp(z − max z) − (z_target − max z)),   dz = (softmax(z) − [target]) / count.
// What travels are three numbers a token, not the logits. Differentiable once; equal on all ranks.
at::Tensor vocabulary_cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t begin,
                                    TensorGroup& group, const std::string& layer);

}  // namespace starling
