// OwnOptimizer is the optimizer that a user's program brings, in place of an update rule
// (optim/update_rule.h).
//
// It is any object that updates parameters from their gradients (.grad), for example a
// torch::optim::Optimizer (run/loop/torch_optimizer.h) or an optimizer of PyTorch. Strategies exchange
// gradients or parameters before and after its step and know nothing else of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "starling/server/torch_settings.h"
#include "starling/spec/run_spec.h"

namespace starling {

struct NamedTensor;

// The part of a parameter that a rank updates.
struct ParameterPart {
  at::Tensor whole;   // the parameter with which the optimizer was made
  at::Tensor part;    // some of its elements, in one dimension; undefined if this rank has none of them
  int64_t first = 0;  // the element of `whole`, in the order of its memory, that `part` begins with
};

// Not thread-safe: the thread that trains makes all calls.
class OwnOptimizer {
 public:
  virtual ~OwnOptimizer() = default;
  // Updates the parameters from their gradients. A parameter without a gradient is left as it is.
  virtual void step() = 0;
  // The learning rate of the first group of parameters.
  virtual double lr() const = 0;
  // Sets the learning rate of each group of parameters to the one with which it was made, times `factor`.
  virtual void scale_lr(double /*factor*/) {}
  // Returns whether the present rates of all groups are those with which they were made, times one factor.
  virtual bool rates_share_a_factor() const { return true; }
  // Returns whether the update of an element depends on that element alone, so that ranks may update parts.
  virtual bool elementwise() const { return false; }
  // Updates `parts` in place of the parameters from now on. Called before the first step. Returns false if
  // the optimizer cannot, because the update of an element depends on other elements.
  virtual bool shard(const std::vector<ParameterPart>& /*parts*/) { return false; }
  // Returns the settings of the update rule (optim/update_rule.h) that makes the updates of this optimizer,
  // with the present learning rate. Nothing if there is no such rule.
  virtual std::optional<OptimizerSpec> rule() const { return std::nullopt; }
  // Returns what the servers need to make the updates of this optimizer where rule() is not enough.
  // parameters: those of the optimizer, in the order of the module. Nothing if servers cannot make them.
  virtual std::optional<TorchSettings> on_servers(const std::vector<NamedTensor>& /*parameters*/) const {
    return std::nullopt;
  }
  // Returns the state (momenta, settings) for a checkpoint: bytes [n], uint8.
  virtual at::Tensor state() = 0;
  // Loads what state() returned. Errors: Error(kCheckpoint) if the bytes are not the state of such an
  // optimizer of these parameters.
  virtual void load_state(const at::Tensor& bytes) = 0;
};

// Makes the optimizer of a replica whose parameters these are, in the order of the module.
using OwnOptimizerMaker =
    std::function<std::shared_ptr<OwnOptimizer>(const std::vector<NamedTensor>& parameters)>;

}  // namespace starling
