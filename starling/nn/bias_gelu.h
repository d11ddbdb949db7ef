// y = gelu(x + b), the tanh form of GELU (Hendrycks and Gimpel, arXiv 1606.08415), as one pass over memory each way:
//
//   z = x + b;  s = sigmoid(2u),  u = √(2/π) (z + 0.044715 z³);  y = z s          (z s = z/2 (1 + tanh u))
//   dx = dy (s + z s (1 - s) 2u'),  u' = √(2/π) (1 + 0.134145 z²);  db = Σ_rows dx
#pragma once

#include <ATen/core/Tensor.h>

namespace starling {

// x: [..., n], bias: [n]. Differentiable in both. fp32 on the CPU takes the fused kernels (relative error of y against
// ATen's below 1e-6); everything else at::gelu.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias);

// The same by ATen's operations; for tests.
at::Tensor bias_gelu_reference(const at::Tensor& x, const at::Tensor& bias);

}  // namespace starling
