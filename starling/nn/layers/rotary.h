// Rotary position embedding (Su et al., arXiv 2104.09864) in the layout of Hugging Face's Llama. A
// head has d numbers, of which i and i + d/2 are a pair. At position p the pair is turned by the angle a.
//
//   x'[i]       = x[i] cos(a) − x[i + d/2] sin(a)          a = p theta^(−2i/d)
//   x'[i + d/2] = x[i + d/2] cos(a) + x[i] sin(a)
//
// The product of a query and a key then depends on the distance of their positions. The transpose of a
// turn is the turn by −a, so backward needs no stored activations.
#pragma once

#include <ATen/core/Tensor.h>

namespace starling {

// The cosine and sine of the angles of all positions, [tokens, d/2] each. They are fp32 and computed in fp32,
// as transformers computes them. They are constants of the model, not parameters or buffers.
struct RotaryTable {
  // `head_width` is d, an even number.
  RotaryTable(int64_t tokens, int64_t head_width, double theta);
  at::Tensor cos, sin;
};

// Returns [n, t, 3 heads d] for causal_attention(): the turned queries, the turned keys and the values side
// by side. `q` is [n, t, heads d]. `k` and `v` are [n, t, kv d] for kv heads. Each kv head serves heads / kv
// neighboring queries (Ainslie et al., grouped queries, arXiv 2305.13245). t is at most the table's number of
// tokens. Differentiable once in q, k and v.
at::Tensor rotated_qkv(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const RotaryTable& table);

// Returns rotated_qkv(), computed with plain differentiable operations. Tests compare against it.
at::Tensor rotated_qkv_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const RotaryTable& table);

}  // namespace starling
