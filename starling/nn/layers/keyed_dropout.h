// Dropout (Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR 15,
// 2014) whose mask is a function of (seed, epoch, sample, layer, element). The mask does not depend on the
// rank or thread that holds a sample, nor on earlier draws. Any division of a batch and any resumed run
// therefore draw the same mask (design decision 5).
//
//   y_e = x_e / (1 - p) if u_e >= p, else 0;   u_e in [0, 1): 32 bits of mix64(stream + (e / 2 + 1) · golden)
//
// Here e counts the elements of a sample, and `stream` mixes the sample's key with the layer. The draws are
// those of SplitMix64, read at any position.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "starling/nn/model.h"

namespace starling {

// Returns x [n, …] times the mask, for a floating-point x and 0 <= p < 1. Dropped elements are 0. All other
// elements are divided by 1 - p. Row i belongs to the sample with key samples.keys[i]. `layer` distinguishes
// the places of a model. Backward draws the mask again instead of storing it. There must be one key for each
// row of x.
at::Tensor keyed_dropout(const at::Tensor& x, double p, const SampleKeys& samples, uint64_t layer);

// Returns the mask, computed naively: 0 or 1 / (1 - p), with the shape and dtype of x. Tests compare against
// it.
at::Tensor keyed_dropout_mask_reference(const at::Tensor& x, double p, const SampleKeys& samples,
                                        uint64_t layer);

// The keys of a model's current samples, shared by all its dropout layers.
using SharedKeys = std::shared_ptr<const SampleKeys>;

// Dropout at one place of a model. Each place has its own number. It does nothing if p is 0 or in evaluation.
class Dropout {
 public:
  // Makes the dropout of place number `place` with drop probability p.
  Dropout(double p, SharedKeys samples, int64_t place)
      : p_(p), samples_(std::move(samples)), place_(static_cast<uint64_t>(place)) {}
  // True if a call would drop elements.
  bool on(bool training) const { return training && p_ > 0; }
  // Returns x with dropped elements, or x itself if on() is false.
  at::Tensor operator()(const at::Tensor& x, bool training) const {
    return on(training) ? keyed_dropout(x, p_, *samples_, place_) : x;
  }

 private:
  double p_;
  SharedKeys samples_;
  uint64_t place_;
};

// Calls `make` with the keys that the model's dropout draws from, and stores these keys in the model as
// Model::samples.
template <class MakeModel>
Model model_with_keys(const MakeModel& make) {
  auto samples = std::make_shared<SampleKeys>();
  Model model = make(SharedKeys(samples));
  model.samples = std::move(samples);
  return model;
}

}  // namespace starling
