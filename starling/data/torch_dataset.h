// Makes a Source of a torch::data data set.
//
//   auto train = starling::dataset(torch::data::datasets::MNIST(root).map(
//       torch::data::transforms::Normalize<>(0.1307, 0.3081)));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "starling/data/collate.h"
#include "starling/data/nest.h"
#include "starling/data/source.h"

namespace starling {

// Reads the samples `indices` of a data set. A loader may leave a read behind that does not end (loader.h).
// The function then lives until that read ends. What it refers to, but does not own, must outlive all reads.
using ReadSamples = std::function<Batch(const std::vector<size_t>& indices)>;

// Returns a source of `size` samples that calls `read`, by one thread at a time. The function reads sample 0
// at once, for the shape of the input. `name` appears in messages. Errors: DataError if the data set is
// empty. The errors of a read are those of `read`.
std::shared_ptr<const Source> source_of_samples(ReadSamples read, int64_t size, std::string name);

// Returns an example of a torch::data data set as a sample.
template <typename Example>
Sample sample_of(const Example& example) {
  if constexpr (std::is_same_v<Example, Sample>) {
    return example;
  } else if constexpr (requires { example.target; }) {
    return {tensors_of(example.data), tensors_of(example.target)};
  } else if constexpr (requires { example.data; }) {
    return {tensors_of(example.data)};
  } else {
    return {tensors_of(example)};
  }
}

// Returns a source of a torch::data data set that has a size and random access, mapped or not and stacked or
// not. It takes the data set over. An example is a torch::data::Example, whose `data` and `target` are
// tensors or nests of tensors (starling/data/nest.h), or a Sample. `collate` makes batches of examples that
// are not stacked: stacked() or padded(), for example.
//
// One thread at a time reads. Transforms must compute the same for the same sample each time. A transform
// that draws random numbers makes the ranks and a resumed run see different samples. The samples are read in
// the order that the run asks for, so the data set needs no sampler and no loader of libtorch's.
//
// Errors: DataError if the data set is empty or has no size.
template <typename Dataset>
std::shared_ptr<const Source> dataset(Dataset data, Collate collate, std::string name = "torch::data") {
  auto shared = std::make_shared<Dataset>(std::move(data));
  const auto size = shared->size();
  ReadSamples read = [shared, collate = std::move(collate)](const std::vector<size_t>& indices) {
    auto examples = shared->get_batch(indices);
    if constexpr (requires { examples.data; }) {  // stacked
      Sample whole = sample_of(examples);
      return make_batch(std::move(whole.inputs), std::move(whole.targets));
    } else {
      std::vector<Sample> samples;
      for (auto& example : examples) samples.push_back(sample_of(example));
      return collate(samples);
    }
  };
  return source_of_samples(std::move(read), size ? static_cast<int64_t>(*size) : 0, std::move(name));
}

// Returns the source of a data set whose examples are stacked().
template <typename Dataset>
std::shared_ptr<const Source> dataset(Dataset data, std::string name = "torch::data") {
  return dataset(std::move(data), Collate(stacked), std::move(name));
}

}  // namespace starling
