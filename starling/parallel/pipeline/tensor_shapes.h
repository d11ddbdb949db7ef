// Encodes the shapes of the tensors of an activation as a message. A stage sends it to the next stage before
// the first activation of each shape of micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace starling {

// The shape of one tensor.
struct MessageShape {
  at::ScalarType type = at::kFloat;
  bool requires_grad = false;
  std::vector<int64_t> sizes;
};

// Returns the shape of each tensor.
std::vector<MessageShape> shapes_of(const std::vector<at::Tensor>& tensors);

// The length in elements of an encoded message.
inline constexpr int64_t kShapeWords = 64;
// Returns an int64 tensor of kShapeWords elements. Errors: ConfigError (model.blocks) if the shapes need
// more.
at::Tensor encode_shapes(const std::vector<MessageShape>& shapes);
// Returns the shapes that `words` encodes.
std::vector<MessageShape> decode_shapes(const at::Tensor& words);

}  // namespace starling
