// Source: a data set that can be read sample by sample, in any order. A sample's content is a function of
// (epoch, index) and the source's seed alone, never of the rank or thread that reads it (design decision 5).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace starling {

// One mini-batch. input: images [n, channels, height, width] fp32, or tokens [n, t] int64. target: class [n] int64, or
// next tokens [n, t] int64.
struct Batch {
  at::Tensor input;
  at::Tensor target;
  at::Tensor keys =
      {};  // [n] int64: what is random about a sample comes from its key, made of (seed, epoch, sample)
  int64_t size() const { return input.defined() ? input.size(0) : 0; }
  // The samples first … first + count - 1, sharing memory.
  Batch part(int64_t first, int64_t count) const {
    return {input.narrow(0, first, count), target.narrow(0, first, count),
            keys.defined() ? keys.narrow(0, first, count) : at::Tensor()};
  }
};

struct SourceInfo {
  std::string name;
  std::vector<int64_t> input_shape;  // without the batch: {1, 28, 28}; {tokens}
  int64_t classes = 0;               // images: classes; text: size of the vocabulary
  bool text = false;
  std::string vocabulary;                // text: the characters in the order of their ids (UTF-8)
  std::vector<std::string> class_names;  // images: one a class, may be empty
};

// Thread-safe: read() is called from several prefetch threads at once.
class Source {
 public:
  virtual ~Source() = default;
  virtual const SourceInfo& info() const = 0;
  virtual int64_t size() const = 0;
  // Reads the samples `indices` (each in 0 … size() - 1) of `epoch` into one batch, augmentation included. The loader
  // adds the keys.
  // Errors: DataError naming file and offset.
  virtual Batch read(const std::vector<int64_t>& indices, int64_t epoch) const = 0;
};

}  // namespace starling
