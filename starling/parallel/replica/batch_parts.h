// Gradient accumulation (train.accumulate): a batch is computed in parts, one after another, and the
// gradients of the parts are added. Only the activations of one part are in memory at a time.
//
// The update is that of the whole batch, up to the order of summation, with two exceptions. The statistics of
// batch norm are those of a part. In bf16 the gradients are added in bf16, which rounds each sum.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "starling/data/source.h"
#include "starling/nn/layers/gradient_slot.h"
#include "starling/parallel/replica/replica.h"

namespace starling {

// Cuts a batch into `count` parts of nearly equal size, in its order. A batch with fewer samples is cut into
// single samples.
std::vector<Batch> cut_batch(const Batch& batch, int64_t count);

// How batch_by_parts() computes. All ranks that compute together cut their batches into equally many parts.
struct PartSteps {
  // Returns the loss of a part, for backward.
  std::function<BatchLoss(const Batch& part)> forward;
  // Runs backward of `loss`, which belongs to part `index`, and adds to the gradients of the parts before.
  std::function<void(const at::Tensor& loss, size_t index)> backward;
  // Multiplies the gradients of the parts so far.
  std::function<void(double factor)> scale_gradients;
  // Returns what the loss of the whole batch is multiplied by, for example share_factor(). It is called once,
  // with the weight of the whole batch and without a sum.
  std::function<double(const BatchLoss& whole)> factor;
  // Is told the loss of all parts before the last backward, or a loss that is not finite.
  std::function<void(double loss)> check;
};

// Returns the steps `forward`, `backward` and `scale_gradients` for a model whose gradients go into `slots`.
// The model and the slots must outlive the result. `parts` is the number of parts.
PartSteps steps_by_slots(const Model& model, at::ScalarType type, bool channels_last,
                         const std::vector<GradientSlot::Installed>& slots, size_t parts);

// Runs forward and backward over the parts of a batch. Returns the loss of the whole batch, times factor().
// The gradients are those of this value.
double batch_by_parts(const std::vector<Batch>& parts, const PartSteps& steps);

}  // namespace starling
