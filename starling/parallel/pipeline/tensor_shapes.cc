#include "starling/parallel/pipeline/tensor_shapes.h"

#include <ATen/ATen.h>

#include "starling/base/error.h"

namespace starling {

std::vector<MessageShape> shapes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<MessageShape> shapes;
  for (const at::Tensor& t : tensors) shapes.push_back({t.scalar_type(), t.requires_grad(), t.sizes().vec()});
  return shapes;
}

// The words are the number of tensors and, for each tensor, its type, whether it requires a gradient, its
// number of dimensions and their sizes.
at::Tensor encode_shapes(const std::vector<MessageShape>& shapes) {
  std::vector<int64_t> words = {static_cast<int64_t>(shapes.size())};
  for (const MessageShape& s : shapes) {
    words.push_back(static_cast<int64_t>(s.type));
    words.push_back(s.requires_grad ? 1 : 0);
    words.push_back(static_cast<int64_t>(s.sizes.size()));
    words.insert(words.end(), s.sizes.begin(), s.sizes.end());
  }
  if (words.size() > kShapeWords) {
    throw ConfigError("model.blocks",
                      "too many tensors pass from one stage to the next; let a block return fewer");
  }
  words.resize(kShapeWords, 0);
  return at::tensor(words, at::kLong);
}

std::vector<MessageShape> decode_shapes(const at::Tensor& words) {
  const auto* at = words.const_data_ptr<int64_t>();
  std::vector<MessageShape> shapes(static_cast<size_t>(*at++));
  for (MessageShape& s : shapes) {
    s.type = static_cast<at::ScalarType>(*at++);
    s.requires_grad = *at++ != 0;
    s.sizes.resize(static_cast<size_t>(*at++));
    for (int64_t& size : s.sizes) size = *at++;
  }
  return shapes;
}

}  // namespace starling
