#include "starling/parallel/replica/codec_shapes.h"

namespace starling {

std::vector<TensorShape> codec_shapes(const std::vector<at::Tensor>& tensors,
                                      const std::vector<size_t>& offsets, size_t end) {
  std::vector<TensorShape> shapes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& t = tensors[i];
    const auto size = static_cast<size_t>(t.numel());
    const size_t next = i + 1 < tensors.size() ? offsets[i + 1] : end;
    TensorShape shape;
    shape.rows = t.dim() > 1 ? static_cast<size_t>(t.size(0)) : 1;
    shape.cols = shape.rows == 0 ? 0 : size / shape.rows;
    shape.padding = next - offsets[i] - size;
    shapes.push_back(shape);
  }
  return shapes;
}

std::span<float> codec_values(const at::Tensor& flat) {
  return {flat.data_ptr<float>(), static_cast<size_t>(flat.numel())};
}

}  // namespace starling
