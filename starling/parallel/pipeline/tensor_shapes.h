// What the tensors of an activation look like, as the message that tells the next stage before the first of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace starling {

struct MessageShape {
  at::ScalarType type = at::kFloat;
  bool requires_grad = false;
  std::vector<int64_t> sizes;
};

std::vector<MessageShape> shapes_of(const std::vector<at::Tensor>& tensors);

// int64, always of kShapeWords elements. Errors: ConfigError (model.blocks) when more than fits passes a cut.
inline constexpr int64_t kShapeWords = 64;
at::Tensor encode_shapes(const std::vector<MessageShape>& shapes);
std::vector<MessageShape> decode_shapes(const at::Tensor& words);

}  // namespace starling
