// Causal self-attention, y = softmax(q kᵀ / √d) v for each head, where position i sees positions 0 … i (Vaswani et al., Attention Is
// All You Need, 2017). For the sequences of small models it computes the lower triangle alone, in blocks of 64 queries, and keeps
// the probabilities for backward:
//
//   forward:   2 products a block, of 64 × (b + 1) 64 scores        backward: 4; with T positions (T / 64 + 1) / (2 T / 64) of the whole square
//   memory:    4 n heads T² bytes are kept, of which the upper triangle is never touched
//
// ATen's flash attention computes the square where T ≤ 512, and the scores once more in backward: 7 products.
#pragma once

#include <ATen/core/Tensor.h>

namespace starling {

// qkv: [n, t, 3 width], queries, keys and values side by side, each head's d = width / heads numbers together; result
// [n, t, width]. Differentiable. fp32 on the CPU with t ≤ 512, a multiple of 16, takes the kernels above; everything else ATen's
// scaled_dot_product_attention.
at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads);

// The same by ATen's operation.
at::Tensor causal_attention_reference(const at::Tensor& qkv, int64_t heads);

}  // namespace starling
