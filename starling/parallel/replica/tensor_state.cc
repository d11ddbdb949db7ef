#include "starling/parallel/replica/tensor_state.h"

#include <ATen/ATen.h>

#include <vector>

#include "starling/comm/message_tags.h"

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

std::map<std::string, at::Tensor> join_state(const std::map<std::string, at::Tensor>& parts,
                                             const TensorSlices& slices, Group& group) {
  std::map<std::string, at::Tensor> whole;
  for (const auto& [name, tensor] : parts) {
    const auto slice = slices.find(parameter_of_state(name));
    if (slice == slices.end() ||
        tensor.sizes() != at::IntArrayRef(slice->second.part_sizes(group.size(), group.rank()))) {
      whole[name] = tensor;
      continue;
    }
    const at::Tensor own = tensor.contiguous();
    if (group.rank() != 0) {
      send(group, own.data_ptr(), own.nbytes(), 0, kTensorStateTag);
      continue;
    }
    std::vector<at::Tensor> all = {own};
    for (int r = 1; r < group.size(); ++r) {
      all.push_back(at::empty(slice->second.part_sizes(group.size(), r), own.options()));
      recv(group, all.back().data_ptr(), all.back().nbytes(), r, kTensorStateTag);
    }
    whole[name] = slice->second.join(all);
  }
  return whole;
}

}  // namespace starling
