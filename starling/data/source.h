// Source is a data set whose samples can be read in any order. A sample's content is a function of (epoch,
// index) and the source's seed alone. It never depends on the rank or thread that reads the sample (design
// decision 5).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace starling {

// One mini-batch. `input` holds images [n, channels, height, width] fp32 or tokens [n, t] int64. `target`
// holds classes [n] int64 or the next tokens [n, t] int64. A user's data set may have several tensors of
// any type: masks, lengths, further inputs and targets. The first dimension of each counts the samples.
struct Batch {
  // What the model receives.
  at::Tensor input;
  // What the loss compares the output with. Undefined if the data set has no targets.
  at::Tensor target;
  // Keys [n] int64, made of (seed, epoch, sample). Everything random about a sample comes from its key.
  at::Tensor keys = {};
  // What the model receives after `input`, in order.
  std::vector<at::Tensor> more_inputs = {};
  // What the loss receives after `target`, in order.
  std::vector<at::Tensor> more_targets = {};
  // The number of samples.
  int64_t size() const { return input.defined() ? input.size(0) : 0; }
  // Returns `input` and `more_inputs`.
  std::vector<at::Tensor> inputs() const;
  // Returns `target`, if it is defined, and `more_targets`.
  std::vector<at::Tensor> targets() const;
  // Returns the samples first … first + count - 1. The result shares memory with this batch.
  Batch part(int64_t first, int64_t count) const;
};

// Makes a batch of its inputs and targets, in order. The keys are undefined. Errors: DataError if there is no
// input, or if the tensors hold different numbers of samples.
Batch make_batch(std::vector<at::Tensor> inputs, std::vector<at::Tensor> targets);

// Facts about a source.
struct SourceInfo {
  std::string name;                      // for messages and reports
  std::vector<int64_t> input_shape;      // without the batch dimension: {1, 28, 28} or {tokens}
  int64_t classes = 0;                   // images: classes; text: size of the vocabulary; 0: unknown
  bool text = false;                     // true: samples are tokens; false: images or a user's tensors
  std::string vocabulary;                // text: the characters in the order of their ids (UTF-8)
  std::vector<std::string> class_names;  // images: one per class; may be empty
};

// A data set. Thread-safe: several prefetch threads call read() at once.
class Source {
 public:
  virtual ~Source() = default;
  // Facts about the source.
  virtual const SourceInfo& info() const = 0;
  // The number of samples.
  virtual int64_t size() const = 0;
  // Reads the samples `indices` (each in 0 … size() - 1) of `epoch` into one batch, including augmentation.
  // The loader adds the keys. Errors: DataError that names the file and the offset.
  virtual Batch read(const std::vector<int64_t>& indices, int64_t epoch) const = 0;
};

}  // namespace starling
