// Trains a model that was pruned or clustered, on one process, by Adam with a cosine schedule.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "starling/data/source.h"
#include "starling/parallel/replica/replica.h"

namespace starling {

// A tensor that is updated: a parameter of the model, or values that parameters are made of.
struct RetrainedTensor {
  at::Tensor value;                      // fp32, contiguous; updated in place
  std::function<at::Tensor()> gradient;  // is called after the backward pass
};

// What is trained, and how long.
struct Retraining {
  double epochs = 1;
  double lr = 0.001;   // of the first step
  int64_t batch = 64;  // samples of a step
  uint64_t seed = 0;   // of the order of the samples
  std::vector<RetrainedTensor> tensors = {};
  // done: the share of the steps so far. Returns false to end the training. May be empty.
  std::function<bool(double done)> before_step = {};
  std::function<void()> after_update = {};  // may be empty
};

// Carries out the steps of `retraining` on `train`. Returns false if before_step() ended them early. The
// gradients of the replica's parameters are those of the mean loss of a batch. The module is in training mode
// afterwards. 0 epochs change nothing. Errors: ConfigError if the data has fewer samples than a batch; Error
// (kNumeric) for a loss that is not finite.
bool retrain(Replica& replica, const std::shared_ptr<const Source>& train, const Retraining& retraining);

}  // namespace starling
