// The function y = gelu(x + b) in one pass over memory, forward and backward. GELU has its tanh form
// (Hendrycks and Gimpel, arXiv 1606.08415):
//
//   z = x + b;  s = sigmoid(2u),  u = √(2/π) (z + 0.044715 z³);  y = z s          (z s = z/2 (1 + tanh u))
//   dx = dy (s + z s (1 - s) 2u'),  u' = √(2/π) (1 + 0.134145 z²);  db = Σ_rows dx
#pragma once

#include <ATen/core/Tensor.h>

namespace starling {

// Returns gelu(x + bias) for x [..., n] and bias [n], differentiable once in both. The fused kernels compute
// fp32 tensors on the CPU; at::gelu computes all other tensors. The relative error of y is below 1e-6 in the
// Euclidean norm.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias);

// Returns gelu(x + bias), computed with ATen's operations. Tests compare against it.
at::Tensor bias_gelu_reference(const at::Tensor& x, const at::Tensor& bias);

}  // namespace starling
