// UpdateRule is one optimizer step over a flat range of parameters, as one pass over memory. The gradients of
// p sources are added in source order, scaled, and used at once. No intermediate result is stored.
//
//   g    = gradient_scale * (gradients[0][i] + gradients[1][i] + …)
//   sgd      dw := momentum dw - lr (g + weight_decay w);  w := w + dw (FireCaffe)
//            State: dw ("momentum"), or none if momentum is 0.
//            With nesterov, w := w + momentum dw - lr (g + weight_decay w) with the new dw (Sutskever et al.
//            2013).
//   adam     g := g + weight_decay w;  m := m + (1 - beta1)(g - m);  v := beta2 v + (1 - beta2) g²;
//            w := w - lr / (1 - beta1^t) · m / (sqrt(v) / sqrt(1 - beta2^t) + eps) (torch.optim.Adam)
//            State: m ("exp_avg"), v ("exp_avg_sq"). t is the step.
//   adamw    w := w - lr weight_decay w, then as adam without weight decay in g (torch.optim.AdamW)
//            State: as adam.
//   adagrad  g := g + weight_decay w;  s := s + g²;  w := w - lr g / (sqrt(s) + eps)
//            (Duchi et al. 2011; torch.optim.Adagrad)
//            State: s ("sum").
//
//   lars     As sgd without Nesterov's momentum. lamb is as adamw. With both, the rate of each tensor is that
//            of LayerRule (optim/layer_rule.h).
//
// With optimizer.ema_decay, every rule has one more state, the last one: the averaged weights a ("ema").
//
//   a := w in the first step, then a := a + (1 - ema_decay) (w - a), with the new w
//   (torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn)
//
// sgd equals torch.optim.SGD while lr is constant. When lr changes the two differ, because PyTorch multiplies
// the whole sum of past gradients by the new lr.
//
// Element i of the result depends only on element i of the inputs. It is computed by a fixed sequence of IEEE
// operations, without contraction into fused multiply-adds. The result is therefore bit-identical for every
// split of the range between threads or ranks and for every vector unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "starling/base/bfloat16.h"
#include "starling/base/isa.h"
#include "starling/spec/run_spec.h"

namespace starling {

// The buffers of one update. T: type of parameters and states (float, double). G: type of gradients (T, or
// Bf16 with float). Each output buffer either is the matching input (in place) or overlaps no input
// (double-buffered update).
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
  // Whether the outputs bypass the caches (stream_copy.h). Set it only for outputs that are not inputs and
  // are not read soon. Averaged weights do not bypass the caches.
  bool stream = false;
};

// The update rule of an optimizer. A copyable value. Thread-safe: apply() may run on disjoint ranges at once.
class UpdateRule {
 public:
  // Makes the rule of `spec` for an instruction set. Errors: ConfigError for an unknown optimizer.name; the
  // message suggests a similar name.
  UpdateRule(const OptimizerSpec& spec, Isa isa);

  // The settings that the rule was made from.
  const OptimizerSpec& spec() const { return spec_; }
  // The number of states per parameter, from 0 (sgd without momentum) to 3 (adam with averaged weights).
  int state_count() const { return static_cast<int>(names_.size()); }
  // The names of the states in checkpoints, in the order of UpdateArgs::state.
  const std::vector<std::string>& state_names() const { return names_; }
  // The number of the state that holds the averaged weights, or -1 if the rule does not average them.
  int average_state() const { return spec_.ema_decay > 0 ? state_count() - 1 : -1; }

  // Performs one step with learning rate `lr`. step: 1 for the first update (Adam's t). States start as
  // zeros. Returns whether all elements of g are finite. If not, the outputs are useless.
  bool apply(const UpdateArgs<float, float>& args, double lr, int64_t step) const;
  // The step for bf16 gradients and fp32 parameters.
  bool apply(const UpdateArgs<float, Bf16>& args, double lr, int64_t step) const;
  // The step in fp64.
  bool apply(const UpdateArgs<double, double>& args, double lr, int64_t step) const;

 private:
  template <typename T, typename G>
  bool apply_typed(const UpdateArgs<T, G>& args, double lr, int64_t step) const;
  template <typename T, typename G>
  bool apply_step(const UpdateArgs<T, G>& args, double lr, int64_t step) const;

  enum class Kind { kSgdPlain, kSgd, kNesterov, kAdam, kAdamW, kAdaGrad };
  Kind kind_;
  OptimizerSpec spec_;
  Isa isa_;
  std::vector<std::string> names_;
};

// Makes the update rule of `spec`. Errors: those of the constructor of UpdateRule.
UpdateRule make_update_rule(const OptimizerSpec& spec, Isa isa = best_isa());

// The name of the state that holds the averaged weights.
inline constexpr const char* kAverageState = "ema";

}  // namespace starling
