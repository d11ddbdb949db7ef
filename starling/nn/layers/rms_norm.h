// RMSNorm (Zhang and Sennrich, arXiv 1910.07467). It normalizes the last dimension, of w numbers.
//
//   forward:   y = n · weight,  n = r x,  r = 1 / sqrt(mean(x²) + eps)
//   backward:  dweight = Σ dy · n,  dx = r (dy · weight − n Σ(dy · n · weight) / w)
//
// Forward keeps x and one r per row. ATen's rms_norm on the CPU is made of separate operations and keeps
// several tensors of the size of x. bf16 and fp16 are computed in fp32.
#pragma once

#include <ATen/core/Tensor.h>

namespace starling {

// Returns y [..., w] for x [..., w] and weight [w] of the same type. Differentiable once in x and weight.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Returns y, computed with ATen's rms_norm. Tests compare against it.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace starling
