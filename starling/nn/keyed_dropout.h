// Dropout (Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR 15, 2014) whose
// mask is a function of (seed, epoch, sample, layer, element): it depends neither on the rank and thread that holds a
// sample nor on what was drawn before, so that any division of a batch and any resumed run draws the same (design
// decision 5).
//
//   y_e = x_e / (1 - p) if u_e >= p, else 0;   u_e in [0, 1): 32 bits of mix64(stream + (e / 2 + 1) · golden)
//
// where e counts the elements of a sample and `stream` mixes the sample's key with the layer: SplitMix64 read at any place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "starling/nn/model.h"

namespace starling {

// x: [n, …], floating point, row i is of the sample with samples.keys[i]; 0 <= p < 1. `layer` tells the places of a model
// apart. The gradient draws the mask anew instead of storing it. It is a bug to call it without the keys of the rows.
at::Tensor keyed_dropout(const at::Tensor& x, double p, const SampleKeys& samples, uint64_t layer);

// The mask, naively: 0 or 1 / (1 - p), the shape and type of x.
at::Tensor keyed_dropout_mask_reference(const at::Tensor& x, double p, const SampleKeys& samples,
                                        uint64_t layer);

using SharedKeys = std::shared_ptr<const SampleKeys>;

// Dropout at one place of a model (each has its own number); nothing where p is 0 or the model is evaluated.
class Dropout {
 public:
  Dropout(double p, SharedKeys samples, int64_t place)
      : p_(p), samples_(std::move(samples)), place_(static_cast<uint64_t>(place)) {}
  bool on(bool training) const { return training && p_ > 0; }
  at::Tensor operator()(const at::Tensor& x, bool training) const {
    return on(training) ? keyed_dropout(x, p_, *samples_, place_) : x;
  }

 private:
  double p_;
  SharedKeys samples_;
  uint64_t place_;
};

// `make` with the keys that a model draws from: makes the module, and the model tells it its samples.
template <class MakeModel>
Model model_with_keys(const MakeModel& make) {
  auto samples = std::make_shared<SampleKeys>();
  Model model = make(SharedKeys(samples));
  model.samples = std::move(samples);
  return model;
}

}  // namespace starling
