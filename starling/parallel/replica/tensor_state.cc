#include "starling/parallel/replica/tensor_state.h"

namespace starling {

std::string parameter_of_state(const std::string& name) {
  const size_t slash = name.find('/');
  return slash == std::string::npos ? name : name.substr(slash + 1);
}

std::map<std::string, at::Tensor> cut_state(const std::map<std::string, at::Tensor>& whole,
                                            const TensorSlices& slices, int size, int rank) {
  std::map<std::string, at::Tensor> parts;
  for (const auto& [name, tensor] : whole) {
    const auto slice = slices.find(parameter_of_state(name));
    const bool fits = slice != slices.end() && tensor.sizes() == at::IntArrayRef(slice->second.sizes);
    parts[name] = fits ? slice->second.cut(tensor, size, rank) : tensor;
  }
  return parts;
}

}  // namespace starling
