// Causal self-attention (Vaswani et al., Attention Is All You Need, 2017): y = softmax(q kᵀ / √d) v for each
// head. Position i attends to positions 0 … i. For short sequences, the function computes only the lower
// triangle, in blocks of 64 queries. It keeps the probabilities for backward. For T positions:
//
//   forward:   2 products per block, of 64 × (b + 1) 64 scores
//   backward:  4 products per block
//   work:      (T / 64 + 1) / (2 T / 64) of the whole square
//   memory:    4 n heads T² bytes are kept, of which the part above the diagonal blocks is never touched
//
// ATen's flash attention computes the whole square if T ≤ 512, and computes the scores again in backward. It
// needs 7 products.
#pragma once

#include <ATen/core/Tensor.h>

namespace starling {

// Returns the attention [n, t, width] of qkv [n, t, 3 width], which holds queries, keys and values side by
// side. The d = width / heads numbers of a head lie together. The function is differentiable once. Kernels of
// this library compute fp32 tensors on the CPU if t ≤ 512 and t is a multiple of 16. They also require that
// libtorch exports the BLAS function sgemm_. ATen's scaled_dot_product_attention computes all other tensors.
at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads);

// Returns the attention, computed with ATen's scaled_dot_product_attention. Tests compare against it.
at::Tensor causal_attention_reference(const at::Tensor& qkv, int64_t heads);

}  // namespace starling
