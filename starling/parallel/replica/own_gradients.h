// How the strategies take the gradients of a user's own loop, and how the user's optimizer updates a part of
// the parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/parallel/replica/flat_layout.h"
#include "starling/parallel/replica/own_optimizer.h"
#include "starling/parallel/replica/replica.h"
#include "starling/parallel/strategy.h"

namespace starling {

// Returns a tensor like `like` on the memory of `flat`. For autograd it is not a view: libtorch's zero_grad()
// detaches gradients in place, which a view refuses.
at::Tensor on_memory_of(const at::Tensor& flat, int64_t offset, const at::Tensor& like);

// Returns a tensor of one dimension on elements [begin, begin + count) of `flat`, which is no view for
// autograd.
at::Tensor elements_of(const at::Tensor& flat, int64_t begin, int64_t count);

// Copies the gradient (.grad) of a parameter to `place`, or zeros if it has none. Its .grad is then `place`.
// Returns whether the parameter had a gradient. Errors: ConfigError that names a parameter whose gradient is
// sparse.
bool take_gradient(NamedTensor& parameter, const at::Tensor& place);

// Learns which parameters had a gradient on some rank, and whether a rank asks to stop. used: by parameter, 0
// if it had none on this rank, and afterwards 0 if it had none on any rank. Collective: no rank returns
// before all ranks have called.
bool agree_on_used(Group& group, std::vector<double>& used, bool stop_requested);

// Makes the optimizer update `parts` only. Errors: ConfigError if the optimizer cannot, because the update of
// an element depends on other elements. It names `key`, the setting that shards the update, and `remedy`.
void shard_optimizer(OwnOptimizer& optimizer, const std::vector<ParameterPart>& parts, const std::string& key,
                     const std::string& remedy);

// OwnedRange is a range of the flat parameters that the user's optimizer updates on this rank. The optimizer
// must update each element by itself. Not thread-safe.
class OwnedRange {
 public:
  OwnedRange() = default;
  // `parameters` lie in flat memory as `layout` says. `elements`, of one dimension, are those of this memory
  // from `begin` on.
  OwnedRange(const std::vector<NamedTensor>& parameters, const FlatLayout& layout, const at::Tensor& elements,
             int64_t begin);

  // The first element of the range.
  int64_t begin() const { return begin_; }
  // The number of elements.
  int64_t count() const { return count_; }
  // By parameter: what the optimizer updates (shard_optimizer()).
  const std::vector<ParameterPart>& parts() const { return parts_; }
  // Gives the parts their gradients. gradients: `count` elements. used: by parameter, as agree_on_used()
  // leaves it. A parameter that had no gradient is not updated.
  void give(const at::Tensor& gradients, const std::vector<double>& used);
  // Takes back the gradients that give() gave.
  void forget();
  // Updates the range alone: give(), the optimizer's step, forget().
  void step(OwnOptimizer& optimizer, const at::Tensor& gradients, const std::vector<double>& used);

 private:
  int64_t begin_ = 0, count_ = 0;
  std::vector<ParameterPart> parts_;  // by parameter
  std::vector<int64_t> from_;         // by parameter: where its part begins in the range
};

// Adds the state of the user's optimizer to a checkpoint: that of each rank, or rank 0's if the states of all
// ranks are equal. `part` names this rank's part of the model. Collective unless `equal`.
void add_own_optimizer(OwnOptimizer& optimizer, Group& group, bool equal, const std::string& part,
                       StrategyState& state);
// Loads what add_own_optimizer() added. Errors: Error(kCheckpoint) if the checkpoint has no such state.
void load_own_optimizer(OwnOptimizer& optimizer, const Group& group, bool equal, const std::string& part,
                        const StrategyState& state);

}  // namespace starling
