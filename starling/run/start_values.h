// The values with which the models of a user's program begin, and the parameters that have no gradient.
//
// Strategies exchange and save parameters with gradients and buffers. StartValues does what they do not:
//   - Every model begins with the values of rank 0's first model, whatever the factory made on other ranks.
//   - Parameters without a gradient (frozen parameters) are a part of checkpoints and of saved weights.
#pragma once

#include <optional>

#include "starling/comm/group.h"
#include "starling/nn/model.h"
#include "starling/nn/safetensors/safetensors.h"
#include "starling/parallel/strategy.h"
#include "starling/train/checkpoint.h"

namespace starling {

// Not thread-safe, except for the factory that in_factory() returns.
class StartValues {
 public:
  // Makes a model on each rank by `factory` with `seed`, and takes the values of rank 0. A single rank needs
  // no values. Collective. Errors: ConfigError if the models of two ranks differ in a name, a shape or a
  // type.
  StartValues(const ModelFactory& factory, uint64_t seed, Group& group);

  // Takes the frozen parameters of the checkpoint that the run resumes from. Errors: Error (kCheckpoint) if
  // it lacks one or has one of another shape.
  void resume(const CheckpointState& checkpoint);

  // Returns a factory whose models have these values. It throws Error (kCheckpoint) if the checkpoint lacks a
  // frozen parameter or has one of another shape. This object must outlive the factory.
  ModelFactory in_factory(ModelFactory factory) const;

  // Takes the present values of the replica's frozen parameters, without copying them, and forgets all other
  // values. A tensor of which the replica has only a slice keeps its value.
  void take_frozen(const Replica& replica);

  // Adds copies of the frozen parameters to state.parameters. Call take_frozen() first.
  void add_frozen(StrategyState& state) const;

 private:
  void install(Model& model) const;

  TensorMap values_;  // parameters and buffers of rank 0, until take_frozen()
  TensorMap frozen_;  // the frozen parameters, whole. A single rank first learns them by take_frozen()
  std::optional<TensorMap> checkpoint_;  // the model of the checkpoint, until take_frozen()
};

}  // namespace starling
