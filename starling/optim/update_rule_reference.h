// The naive form of optim/update_rule.h: one element at a time, in the order of the formulas. Tests compare
// the kernels with it.
#pragma once

#include <cmath>
#include <cstdint>

#include "starling/optim/update_rule.h"

namespace starling {

// Returns a gradient element as double.
inline double as_double(double x) {
  return x;
}
// Returns a gradient element as double.
inline double as_double(Bf16 x) {
  return to_fp32(x);
}

// Returns the scaled sum of the gradients of element i, in type T.
template <typename T, typename G>
T reference_gradient(const UpdateArgs<T, G>& a, size_t i) {
  T g = 0;
  for (int s = 0; s < a.sources; ++s) g += static_cast<T>(as_double(a.gradients[s][i]));
  return g * static_cast<T>(a.gradient_scale);
}

// Stochastic gradient descent with momentum and weight decay.
template <typename T, typename G>
void reference_sgd(const UpdateArgs<T, G>& a, const OptimizerSpec& spec, double lr) {
  const T mu = static_cast<T>(spec.momentum), omega = static_cast<T>(spec.weight_decay);
  const T rate = static_cast<T>(lr);
  for (size_t i = 0; i < a.count; ++i) {
    const T g = reference_gradient(a, i);
    const T w = a.parameter[i];
    const T previous = mu == T(0) ? T(0) : a.state[0][i];
    const T dw = mu * previous - rate * (g + omega * w);
    if (mu != T(0)) a.state_out[0][i] = dw;
    a.parameter_out[i] =
        spec.nesterov && spec.name == "sgd" ? w + (mu * dw - rate * (g + omega * w)) : w + dw;
  }
}

// Adam, or AdamW if spec.name is "adamw".
template <typename T, typename G>
void reference_adam(const UpdateArgs<T, G>& a, const OptimizerSpec& spec, double lr, int64_t step) {
  const bool decoupled = spec.name == "adamw";
  const double correction1 = 1 - std::pow(spec.beta1, step), correction2 = 1 - std::pow(spec.beta2, step);
  for (size_t i = 0; i < a.count; ++i) {
    T g = reference_gradient(a, i);
    T w = a.parameter[i];
    if (decoupled) w *= static_cast<T>(1 - lr * spec.weight_decay);
    if (!decoupled) g += static_cast<T>(spec.weight_decay) * w;
    const T m = a.state[0][i] + static_cast<T>(1 - spec.beta1) * (g - a.state[0][i]);
    const T v = static_cast<T>(spec.beta2) * a.state[1][i] + static_cast<T>(1 - spec.beta2) * (g * g);
    const T denominator = std::sqrt(v) / static_cast<T>(std::sqrt(correction2)) + static_cast<T>(spec.eps);
    a.state_out[0][i] = m;
    a.state_out[1][i] = v;
    a.parameter_out[i] = w - static_cast<T>(lr / correction1) * (m / denominator);
  }
}

// AdaGrad.
template <typename T, typename G>
void reference_adagrad(const UpdateArgs<T, G>& a, const OptimizerSpec& spec, double lr) {
  for (size_t i = 0; i < a.count; ++i) {
    const T w = a.parameter[i];
    const T g = reference_gradient(a, i) + static_cast<T>(spec.weight_decay) * w;
    const T sum = a.state[0][i] + g * g;
    a.state_out[0][i] = sum;
    a.parameter_out[i] = w - static_cast<T>(lr) * (g / (std::sqrt(sum) + static_cast<T>(spec.eps)));
  }
}

// Returns the rate of lars or lamb for one whole tensor.
template <typename T, typename G>
double reference_rate(const UpdateArgs<T, G>& a, const OptimizerSpec& spec, double lr, int64_t step) {
  double parameter = 0, update = 0;
  for (size_t i = 0; i < a.count; ++i) {
    const double w = static_cast<double>(a.parameter[i]), g = static_cast<double>(reference_gradient(a, i));
    double u = g;
    if (spec.name == "lamb") {
      const double m = spec.beta1 * static_cast<double>(a.state[0][i]) + (1 - spec.beta1) * g;
      const double v = spec.beta2 * static_cast<double>(a.state[1][i]) + (1 - spec.beta2) * g * g;
      u = m / (1 - std::pow(spec.beta1, step)) /
              (std::sqrt(v / (1 - std::pow(spec.beta2, step))) + spec.eps) +
          spec.weight_decay * w;
    }
    parameter += w * w;
    update += u * u;
  }
  const double w = std::sqrt(parameter), u = std::sqrt(update);
  if (w == 0 || u == 0) return lr;
  return spec.name == "lars" ? lr * spec.trust * w / (u + spec.weight_decay * w) : lr * w / u;
}

// Updates the averaged weights, which are state `index`.
template <typename T, typename G>
void reference_average(const UpdateArgs<T, G>& a, const OptimizerSpec& spec, int64_t step, int index) {
  const T d = static_cast<T>(spec.ema_decay);
  for (size_t i = 0; i < a.count; ++i) {
    const T w = a.parameter_out[i];
    a.state_out[index][i] = step == 1 ? w : d * a.state[index][i] + (1 - d) * w;
  }
}

// Performs the step of the rule that `spec` names. For lars, lamb and optimizer.exempt_vectors, the range is
// one whole tensor. vector: it has at most one dimension.
template <typename T, typename G>
void reference_update(const UpdateArgs<T, G>& a, OptimizerSpec spec, double lr, int64_t step,
                      bool vector = false) {
  const bool exempt = spec.exempt_vectors && vector;
  if (exempt) spec.weight_decay = 0;
  if (!exempt && (spec.name == "lars" || spec.name == "lamb")) lr = reference_rate(a, spec, lr, step);
  if (spec.name == "lars") spec.name = "sgd";
  if (spec.name == "lamb") spec.name = "adamw";
  if (spec.name == "sgd") {
    reference_sgd(a, spec, lr);
  } else if (spec.name == "adagrad") {
    reference_adagrad(a, spec, lr);
  } else {
    reference_adam(a, spec, lr, step);
  }
  const int states = spec.name == "sgd" ? (spec.momentum == 0 ? 0 : 1) : spec.name == "adagrad" ? 1 : 2;
  if (spec.ema_decay > 0) reference_average(a, spec, step, states);
  for (size_t i = 0; a.bf16_out != nullptr && i < a.count; ++i)
    a.bf16_out[i] = to_bf16(static_cast<float>(a.parameter_out[i]));
}

}  // namespace starling
