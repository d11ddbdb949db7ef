#include "starling/data/source.h"

#include <fmt/format.h>

#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

std::vector<at::Tensor> joined(const at::Tensor& first, const std::vector<at::Tensor>& more) {
  std::vector<at::Tensor> all;
  all.reserve(1 + more.size());
  if (first.defined()) all.push_back(first);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<at::Tensor> parts_of(const std::vector<at::Tensor>& tensors, int64_t first, int64_t count) {
  std::vector<at::Tensor> parts;
  parts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.narrow(0, first, count));
  return parts;
}

// Returns the first tensor and leaves the remaining ones in `tensors`.
at::Tensor take_first(std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  at::Tensor first = std::move(tensors.front());
  tensors.erase(tensors.begin());
  return first;
}

}  // namespace

std::vector<at::Tensor> Batch::inputs() const {
  return joined(input, more_inputs);
}

std::vector<at::Tensor> Batch::targets() const {
  return joined(target, more_targets);
}

Batch Batch::part(int64_t first, int64_t count) const {
  return {input.narrow(0, first, count), target.defined() ? target.narrow(0, first, count) : at::Tensor(),
          keys.defined() ? keys.narrow(0, first, count) : at::Tensor(), parts_of(more_inputs, first, count),
          parts_of(more_targets, first, count)};
}

Batch make_batch(std::vector<at::Tensor> inputs, std::vector<at::Tensor> targets) {
  if (inputs.empty()) throw DataError("a data set needs at least one input tensor");
  const auto check = [&](const char* kind, const std::vector<at::Tensor>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const bool fits = tensors[i].defined() && tensors[i].dim() > 0 && inputs[0].dim() > 0 &&
                        tensors[i].size(0) == inputs[0].size(0);
      if (fits) continue;
      throw DataError(fmt::format(
          "a data set of tensors needs one row per sample in each of its tensors, but {} {} has {} rows and "
          "input 0 has {}",
          kind, i, tensors[i].defined() && tensors[i].dim() > 0 ? tensors[i].size(0) : 0,
          inputs[0].defined() && inputs[0].dim() > 0 ? inputs[0].size(0) : 0));
    }
  };
  check("input", inputs);
  check("target", targets);
  Batch batch;
  batch.input = take_first(inputs);
  batch.target = take_first(targets);
  batch.more_inputs = std::move(inputs);
  batch.more_targets = std::move(targets);
  return batch;
}

}  // namespace starling
