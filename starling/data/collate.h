// Collate functions make a batch of samples. A sample may have several inputs and targets, and samples may
// differ in length.
//
//   auto train = starling::sample_source(sentences.size(), [&](int64_t i) {
//     return starling::Sample{{sentences[i].words}, {sentences[i].tags}};
//   }, starling::padded());
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/data/source.h"

namespace starling {

// One sample of a data set. Its tensors have no dimension for the samples.
struct Sample {
  // What the model receives.
  std::vector<at::Tensor> inputs;
  // What the loss receives after the outputs of the model. May be empty.
  std::vector<at::Tensor> targets = {};
};

// Makes a batch of samples. Several threads may call it at once.
using Collate = std::function<Batch(const std::vector<Sample>& samples)>;

// Stacks tensors of equal shape: a tensor [a, b] of n samples becomes [n, a, b]. Errors: DataError if samples
// have different numbers of tensors, or tensors of different shapes.
Batch stacked(const std::vector<Sample>& samples);

// The values that padded() writes behind the end of a sample.
struct Padding {
  // Fills inputs.
  double input = 0;
  // Fills targets. A loss that leaves out the targets of this value leaves out the padding.
  double target = 0;
};

// Returns a collate function for samples of different lengths. The length of a tensor is its first dimension.
// A tensor [length, …] is filled up to the longest of the batch and becomes [n, longest, …]. Tensors without
// dimensions become [n]. The batch has one input more than the samples: the lengths [n] int64 of the samples'
// first inputs come last.
//
// Each rank pads its own share of a batch, so the longest may differ from rank to rank. A model that masks by
// the lengths computes the same in any case.
//
// Errors of the collate function: DataError if samples differ in more than their lengths.
Collate padded(const Padding& padding = {});

// Returns a source whose sample i is get(i). One thread at a time calls get(). It must return the same sample
// for the same number on every rank and in a resumed run. The function reads sample 0 at once, for the shape
// of the input. What get() refers to, but does not own, must outlive all reads (ReadSamples in
// torch_dataset.h). `name` appears in messages. Errors: DataError if the data set is empty, and those of
// get() and `collate`.
std::shared_ptr<const Source> sample_source(int64_t size, std::function<Sample(int64_t)> get,
                                            Collate collate = stacked, std::string name = "samples");

}  // namespace starling
