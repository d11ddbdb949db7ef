// The arithmetic of one element, as one struct per rule. A struct's scalars are computed once per step, in
// double, and rounded to T. operator()(g, w, state) changes w and the state in place.
#pragma once

#include <cmath>
#include <cstdint>

#include "starling/base/isa_dispatch.h"
#include "starling/spec/run_spec.h"

namespace starling {

// The square root of a float.
STARLING_INLINE float square_root(float x) {
  return __builtin_sqrtf(x);
}
// The square root of a double.
STARLING_INLINE double square_root(double x) {
  return __builtin_sqrt(x);
}

// SGD without momentum.
template <typename T>
struct SgdPlainStep {
  static constexpr int kStates = 0;
  T lr, weight_decay;
  SgdPlainStep(const OptimizerSpec& s, double rate, int64_t)
      : lr(static_cast<T>(rate)), weight_decay(static_cast<T>(s.weight_decay)) {}
  // Updates one element.
  STARLING_INLINE void operator()(T g, T& w, T*) const { w = w - lr * (g + weight_decay * w); }
};

// SGD with momentum, or with Nesterov's momentum if kNesterov.
template <typename T, bool kNesterov>
struct SgdStep {
  static constexpr int kStates = 1;
  T lr, momentum, weight_decay;
  SgdStep(const OptimizerSpec& s, double rate, int64_t)
      : lr(static_cast<T>(rate)),
        momentum(static_cast<T>(s.momentum)),
        weight_decay(static_cast<T>(s.weight_decay)) {}
  // Updates one element.
  STARLING_INLINE void operator()(T g, T& w, T* state) const {
    const T fall = lr * (g + weight_decay * w);
    const T change = momentum * state[0] - fall;
    state[0] = change;
    w = w + (kNesterov ? momentum * change - fall : change);
  }
};

// AdaGrad.
template <typename T>
struct AdaGradStep {
  static constexpr int kStates = 1;
  T lr, weight_decay, eps;
  AdaGradStep(const OptimizerSpec& s, double rate, int64_t)
      : lr(static_cast<T>(rate)), weight_decay(static_cast<T>(s.weight_decay)), eps(static_cast<T>(s.eps)) {}
  // Updates one element.
  STARLING_INLINE void operator()(T g, T& w, T* state) const {
    g = g + weight_decay * w;
    const T sum = state[0] + g * g;
    state[0] = sum;
    w = w - lr * (g / (square_root(sum) + eps));
  }
};

// Adam, or AdamW if kDecoupled.
template <typename T, bool kDecoupled>
struct AdamStep {
  static constexpr int kStates = 2;
  T step_size, weight_decay, keep, one_minus_beta1, beta2, one_minus_beta2, root_correction2, eps;
  AdamStep(const OptimizerSpec& s, double rate, int64_t step)
      : step_size(static_cast<T>(rate / (1.0 - std::pow(s.beta1, static_cast<double>(step))))),
        weight_decay(static_cast<T>(s.weight_decay)),
        keep(static_cast<T>(1.0 - rate * s.weight_decay)),
        one_minus_beta1(static_cast<T>(1.0 - s.beta1)),
        beta2(static_cast<T>(s.beta2)),
        one_minus_beta2(static_cast<T>(1.0 - s.beta2)),
        root_correction2(static_cast<T>(std::sqrt(1.0 - std::pow(s.beta2, static_cast<double>(step))))),
        eps(static_cast<T>(s.eps)) {}
  // Updates one element.
  STARLING_INLINE void operator()(T g, T& w, T* state) const {
    if constexpr (kDecoupled) {
      w = w * keep;
    } else {
      g = g + weight_decay * w;
    }
    const T mean = state[0] + one_minus_beta1 * (g - state[0]);
    const T square = beta2 * state[1] + one_minus_beta2 * (g * g);
    state[0] = mean;
    state[1] = square;
    w = w - step_size * (mean / (square_root(square) / root_correction2 + eps));
  }
};

}  // namespace starling
