// UpdateRule: one optimizer step over a flat range of parameters, as one pass over memory: the gradients of p
// sources are added in source order, scaled, and used at once; neither their sum nor any intermediate is
// stored.
//
//   g    = gradient_scale * (gradients[0][i] + gradients[1][i] + …)
//   sgd    dw := momentum dw - lr (g + weight_decay w);  w := w + dw (FireCaffe)
//          State: dw ("momentum"); none where momentum is 0. Equal to torch.optim.SGD while lr is constant;
//          when lr changes the two differ, for PyTorch multiplies the whole sum of past gradients by the new
//          lr.
//   adam   g := g + weight_decay w;  m := m + (1 - beta1)(g - m);  v := beta2 v + (1 - beta2) g²;
//          w := w - lr / (1 - beta1^t) · m / (sqrt(v) / sqrt(1 - beta2^t) + eps) (torch.optim.Adam)
//   adamw  w := w - lr weight_decay w, then as adam without weight decay in g (torch.optim.AdamW)
//          State: m ("exp_avg"), v ("exp_avg_sq"); t is the step.
//   adagrad  g := g + weight_decay w;  s := s + g²;  w := w - lr g / (sqrt(s) + eps)
//          (Duchi et al. 2011; torch.optim.Adagrad). State: s ("sum").
//
// Element i of the result depends on element i of the inputs alone, by the same IEEE operations (no
// contraction into fused multiply-adds) wherever it lies: it is bit-identical however the range is split
// between threads or ranks and whichever vector unit computes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "starling/optim/bf16.h"
#include "starling/optim/isa.h"
#include "starling/spec/run_spec.h"

namespace starling {

// T: type of parameters and state (float, double). G: type of gradients (T, or Bf16 with float).
// Each out buffer is either the matching input (in place) or does not overlap any input (double-buffered
// update).
template <typename T, typename G>
struct UpdateArgs {
  const G* const* gradients = nullptr;  // `sources` buffers of `count` elements
  int sources = 1;
  double gradient_scale = 1.0;  // e.g. 1 / ranks, times the clipping factor
  const T* parameter = nullptr;
  T* parameter_out = nullptr;
  Bf16* bf16_out = nullptr;         // working copy of parameter_out for bf16 training; may be null
  const T* const* state = nullptr;  // state_count() buffers, in the order of state_names()
  T* const* state_out = nullptr;
  size_t count = 0;
  bool stream = false;  // write around the caches; only for outputs that are not inputs and not read soon
};

// A value: copy it freely. Thread-safe: apply() may run on disjoint ranges at once.
class UpdateRule {
 public:
  UpdateRule(const OptimizerSpec& spec, Isa isa);

  int state_count() const { return static_cast<int>(names_.size()); }
  const std::vector<std::string>& state_names() const { return names_; }

  // One step with learning rate `lr`. step: 1 for the first update (Adam's t). State starts as zeros.
  void apply(const UpdateArgs<float, float>& args, double lr, int64_t step) const;
  void apply(const UpdateArgs<float, Bf16>& args, double lr, int64_t step) const;
  void apply(const UpdateArgs<double, double>& args, double lr, int64_t step) const;

 private:
  template <typename T, typename G>
  void apply_typed(const UpdateArgs<T, G>& args, double lr, int64_t step) const;

  enum class Kind { kSgdPlain, kSgd, kAdam, kAdamW, kAdaGrad };
  Kind kind_;
  OptimizerSpec spec_;
  Isa isa_;
  std::vector<std::string> names_;
};

// Errors: ConfigError for an unknown optimizer.name (suggests the near one).
UpdateRule make_update_rule(const OptimizerSpec& spec, Isa isa = best_isa());

}  // namespace starling
