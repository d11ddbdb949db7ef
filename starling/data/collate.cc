#include "starling/data/collate.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "starling/base/error.h"
#include "starling/data/torch_dataset.h"

namespace starling {
namespace {

using TensorsOf = std::vector<at::Tensor> Sample::*;

// Returns tensor `i` of every sample. Throws DataError unless all samples have as many tensors as the first.
std::vector<at::Tensor> column(const std::vector<Sample>& samples, TensorsOf of, size_t i) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(samples.size());
  for (const Sample& sample : samples) {
    if ((sample.*of).size() != (samples[0].*of).size()) {
      throw DataError(fmt::format("the samples of a batch have {} and {} {}; each needs as many as the first",
                                  (samples[0].*of).size(), (sample.*of).size(),
                                  of == &Sample::inputs ? "inputs" : "targets"));
    }
    tensors.push_back((sample.*of)[i]);
  }
  return tensors;
}

[[noreturn]] void refuse_shapes(const at::Tensor& first, const at::Tensor& other, const char* remedy) {
  throw DataError(fmt::format("the samples of a batch have tensors of shapes [{}] and [{}]; {}",
                              fmt::join(first.sizes(), ", "), fmt::join(other.sizes(), ", "), remedy));
}

at::Tensor stack_column(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.sizes() != tensors[0].sizes())
      refuse_shapes(tensors[0], tensor, "use the collate function starling::padded() for different lengths");
  }
  return at::stack(tensors);
}

at::Tensor pad_column(const std::vector<at::Tensor>& tensors, double value) {
  if (tensors[0].dim() == 0) return stack_column(tensors);
  int64_t longest = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() != tensors[0].dim() || tensor.sizes().slice(1) != tensors[0].sizes().slice(1))
      refuse_shapes(tensors[0], tensor, "only the first dimension may differ");
    longest = std::max(longest, tensor.size(0));
  }
  std::vector<int64_t> sizes = tensors[0].sizes().vec();
  sizes[0] = longest;
  sizes.insert(sizes.begin(), static_cast<int64_t>(tensors.size()));
  at::Tensor all = at::full(sizes, value, tensors[0].options());
  for (size_t i = 0; i < tensors.size(); ++i)
    all.select(0, static_cast<int64_t>(i)).narrow(0, 0, tensors[i].size(0)).copy_(tensors[i]);
  return all;
}

template <typename Make>
std::vector<at::Tensor> columns(const std::vector<Sample>& samples, TensorsOf of, const Make& make) {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < (samples.at(0).*of).size(); ++i) all.push_back(make(column(samples, of, i)));
  return all;
}

at::Tensor lengths_of(const std::vector<Sample>& samples) {
  std::vector<int64_t> lengths;
  lengths.reserve(samples.size());
  for (const Sample& sample : samples) {
    if (sample.inputs.empty() || sample.inputs[0].dim() == 0)
      throw DataError("starling::padded() needs a first input with a length, but a sample has none");
    lengths.push_back(sample.inputs[0].size(0));
  }
  return at::tensor(lengths, at::kLong);
}

}  // namespace

Batch stacked(const std::vector<Sample>& samples) {
  std::vector<at::Tensor> inputs = columns(samples, &Sample::inputs, stack_column);
  return make_batch(std::move(inputs), columns(samples, &Sample::targets, stack_column));
}

Collate padded(const Padding& padding) {
  return [padding](const std::vector<Sample>& samples) {
    std::vector<at::Tensor> inputs =
        columns(samples, &Sample::inputs,
                [&](const std::vector<at::Tensor>& all) { return pad_column(all, padding.input); });
    inputs.push_back(lengths_of(samples));
    return make_batch(std::move(inputs),
                      columns(samples, &Sample::targets, [&](const std::vector<at::Tensor>& all) {
                        return pad_column(all, padding.target);
                      }));
  };
}

std::shared_ptr<const Source> sample_source(int64_t size, std::function<Sample(int64_t)> get, Collate collate,
                                            std::string name) {
  ReadSamples read = [get = std::move(get),
                      collate = std::move(collate)](const std::vector<size_t>& indices) {
    std::vector<Sample> samples;
    samples.reserve(indices.size());
    for (const size_t i : indices) samples.push_back(get(static_cast<int64_t>(i)));
    return collate(samples);
  };
  return source_of_samples(std::move(read), size, std::move(name));
}

}  // namespace starling
