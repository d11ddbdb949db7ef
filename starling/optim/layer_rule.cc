#include "starling/optim/layer_rule.h"

#include <cmath>

#include "starling/base/isa_dispatch.h"
#include "starling/optim/sum_of_squares.h"
#include "starling/optim/update_part.h"
#include "starling/optim/widen.h"

namespace starling {
namespace {

// A rate beyond this one comes from an update of almost 0. As fp32 it could be infinite, and infinity times 0
// is not a number.
constexpr double kLargestRate = 1e30;

OptimizerSpec without_decay(OptimizerSpec spec) {
  spec.weight_decay = 0;
  return spec;
}

// Adds the squares of lamb's r. Sums are made in kLanes independent lanes, so that every instruction set adds
// in the same order.
template <typename T, typename G>
struct LambSquares {
  static constexpr size_t kLanes = 16;
  const UpdateArgs<T, G>& a;
  const OptimizerSpec& spec;
  int64_t step;
  double* result;

  STARLING_INLINE void operator()() const {
    const T beta1 = static_cast<T>(1 - spec.beta1), beta2 = static_cast<T>(spec.beta2);
    const T left2 = static_cast<T>(1 - spec.beta2), eps = static_cast<T>(spec.eps);
    const T correction1 = static_cast<T>(1 / (1 - std::pow(spec.beta1, static_cast<double>(step))));
    const T root2 = static_cast<T>(std::sqrt(1 - std::pow(spec.beta2, static_cast<double>(step))));
    const T decay = static_cast<T>(spec.weight_decay), scale = static_cast<T>(a.gradient_scale);
    double lanes[kLanes] = {};
    for (size_t i = 0; i < a.count; ++i) {
      T sum = widen(a.gradients[0][i]);
      for (int s = 1; s < a.sources; ++s) sum = sum + widen(a.gradients[s][i]);
      const T g = sum * scale;
      const T mean = a.state[0][i] + beta1 * (g - a.state[0][i]);
      const T square = beta2 * a.state[1][i] + left2 * (g * g);
      const T r =
          correction1 * (mean / (static_cast<T>(std::sqrt(square)) / root2 + eps)) + decay * a.parameter[i];
      lanes[i % kLanes] += static_cast<double>(r) * static_cast<double>(r);
    }
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    *result = sum;
  }
};

}  // namespace

LayerRule::LayerRule(const OptimizerSpec& spec, Isa isa)
    : spec_(spec),
      isa_(isa),
      lars_(spec.name == "lars"),
      lamb_(spec.name == "lamb"),
      rule_(make_update_rule(spec, isa)),
      without_decay_(make_update_rule(without_decay(spec), isa)) {}

double LayerRule::rate(double lr, const LayerSquares& squares) const {
  const double w = std::sqrt(squares.parameter), u = std::sqrt(squares.update);
  if (!needs_squares() || !(w > 0) || !(u > 0)) return lr;
  const double rate = lars_ ? lr * spec_.trust * w / (u + spec_.weight_decay * w) : lr * w / u;
  return rate <= kLargestRate ? rate : lr;
}

template <typename T, typename G>
void LayerRule::add_squares(const UpdateArgs<T, G>& args, std::span<const LayerPart> parts, int64_t step,
                            std::vector<LayerSquares>& squares) const {
  if (!needs_squares()) return;
  for (const LayerPart& part : parts) {
    if (exempt(part) || part.begin == part.end) continue;
    const UpdatePart<T, G> own(args, part.begin, part.end, rule_.state_count());
    LayerSquares& sums = squares.at(part.tensor);
    sums.parameter += sum_of_squares(&own.args.parameter, 1, 1.0, own.args.count, isa_);
    if (lars_) {
      sums.update +=
          sum_of_squares(own.args.gradients, own.args.sources, own.args.gradient_scale, own.args.count, isa_);
    } else {
      double sum = 0;
      dispatch(isa_, LambSquares<T, G>{own.args, spec_, step, &sum});
      sums.update += sum;
    }
  }
}

template <typename T, typename G>
bool LayerRule::apply(const UpdateArgs<T, G>& args, std::span<const LayerPart> parts, double lr, int64_t step,
                      const std::vector<LayerSquares>& squares) const {
  bool finite = true;
  for (const LayerPart& part : parts) {
    if (part.begin == part.end) continue;
    const UpdatePart<T, G> own(args, part.begin, part.end, rule_.state_count());
    if (exempt(part)) {
      finite &= without_decay_.apply(own.args, lr, step);
    } else {
      finite &= rule_.apply(own.args, needs_squares() ? rate(lr, squares.at(part.tensor)) : lr, step);
    }
  }
  return finite;
}

#define STARLING_LAYER_RULE(T, G)                                                                      \
  template void LayerRule::add_squares(const UpdateArgs<T, G>&, std::span<const LayerPart>, int64_t,   \
                                       std::vector<LayerSquares>&) const;                              \
  template bool LayerRule::apply(const UpdateArgs<T, G>&, std::span<const LayerPart>, double, int64_t, \
                                 const std::vector<LayerSquares>&) const;
STARLING_LAYER_RULE(float, float)
STARLING_LAYER_RULE(float, Bf16)
STARLING_LAYER_RULE(double, double)
#undef STARLING_LAYER_RULE

}  // namespace starling
