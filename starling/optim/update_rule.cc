#include "starling/optim/update_rule.h"

#include <algorithm>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/optim/stream_copy.h"
#include "starling/optim/update_part.h"
#include "starling/optim/update_step.h"
#include "starling/optim/widen.h"

namespace starling {
namespace {

constexpr size_t kBlock = 1024;  // elements; a block stays in the first-level cache between two loops
// The elements that are updated before they are averaged. They stay in the second-level cache.
constexpr size_t kAveraged = 8 * kBlock;

STARLING_INLINE Bf16 narrow(float x) {
  return to_bf16(x);
}
STARLING_INLINE Bf16 narrow(double x) {
  return narrow(static_cast<float>(x));
}

// Returns 1 for NaN and infinities, otherwise 0. Integers keep the loop around it free of branches, so that
// it is vectorized.
STARLING_INLINE uint32_t not_finite(float x) {
  constexpr uint32_t kExponent = 0x7f800000u;
  return (__builtin_bit_cast(uint32_t, x) & kExponent) == kExponent ? 1 : 0;
}
STARLING_INLINE uint64_t not_finite(double x) {
  constexpr uint64_t kExponent = 0x7ff0000000000000u;
  return (__builtin_bit_cast(uint64_t, x) & kExponent) == kExponent ? 1 : 0;
}

// Updates `n` elements with the sum of kSources gradient buffers. Output pointers may equal the input
// pointers. Returns whether the scaled sums are finite.
template <int kSources, typename T, typename G, typename Step>
STARLING_INLINE bool pass(const Step& step_in, const G* const* gradients, T scale, const T* w_in, T* w_out,
                          const T* const* state_in, T* const* state_out, size_t n) {
  constexpr int kStates = Step::kStates;
  const Step step = step_in;
  decltype(not_finite(T{})) bad = 0;
  const G* g[kSources];
  for (int s = 0; s < kSources; ++s) g[s] = gradients[s];
  const T* in[kStates + 1] = {};
  T* out[kStates + 1] = {};
  for (int k = 0; k < kStates; ++k) {
    in[k] = state_in[k];
    out[k] = state_out[k];
  }
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    T sum = widen(g[0][i]);
    for (int s = 1; s < kSources; ++s) sum = sum + widen(g[s][i]);
    T w = w_in[i];
    T state[kStates + 1];
    for (int k = 0; k < kStates; ++k) state[k] = in[k][i];
    const T mean = sum * scale;
    bad |= not_finite(mean);
    step(mean, w, state);
    w_out[i] = w;
    for (int k = 0; k < kStates; ++k) out[k][i] = state[k];
  }
  return bad == 0;
}

// Adds any number of gradient buffers. `sum` receives the sums of n ≤ kBlock elements.
template <typename T, typename G>
STARLING_INLINE void add_sources(const G* const* gradients, int sources, size_t begin, size_t n, T* sum) {
  const G* first = gradients[0] + begin;
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) sum[i] = widen(first[i]);
  for (int s = 1; s < sources; ++s) {
    const G* g = gradients[s] + begin;
#pragma GCC ivdep
    for (size_t i = 0; i < n; ++i) sum[i] = sum[i] + widen(g[i]);
  }
}

// The pass over [begin, begin + n) for any number of sources. Outputs are pointers to their first element.
// Returns whether the scaled sums are finite.
//
// A call of pass() makes one loop for each update rule, pair of types and instruction set, up to 45 loops.
// fp64 has the call for one source only, after an addition of the gradients, because training seldom uses
// fp64.
template <typename T, typename G, typename Step>
STARLING_INLINE bool pass_range(const UpdateArgs<T, G>& a, const Step& step, size_t begin, size_t n, T* w_out,
                                T* const* state_out) {
  constexpr int kUnrolled = sizeof(T) == sizeof(float) ? 4 : 1;
  const T scale = static_cast<T>(a.gradient_scale);
  const T* state_in[Step::kStates + 1] = {};
  for (int k = 0; k < Step::kStates; ++k) state_in[k] = a.state[k] + begin;
  const T* w_in = a.parameter + begin;
  const G* g[kUnrolled] = {};
  for (int s = 0; s < kUnrolled && s < a.sources; ++s) g[s] = a.gradients[s] + begin;
  if constexpr (kUnrolled == 4) {
    switch (a.sources) {
      case 2:
        return pass<2>(step, g, scale, w_in, w_out, state_in, state_out, n);
      case 3:
        return pass<3>(step, g, scale, w_in, w_out, state_in, state_out, n);
      case 4:
        return pass<4>(step, g, scale, w_in, w_out, state_in, state_out, n);
      default:
        break;
    }
  }
  alignas(64) T sum[kBlock];
  if (a.sources > 1) add_sources(a.gradients, a.sources, begin, n, sum);
  if constexpr (std::is_same_v<T, G>) {
    if (a.sources > 1) g[0] = sum;
  } else if (a.sources > 1) {
    const T* sums[1] = {sum};
    return pass<1>(step, sums, scale, w_in, w_out, state_in, state_out, n);
  }
  return pass<1>(step, g, scale, w_in, w_out, state_in, state_out, n);
}

template <typename T>
STARLING_INLINE void narrow_to(const T* from, Bf16* to, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) to[i] = narrow(from[i]);
}

// Pass updates the whole range, block by block. It writes the results directly to the outputs. If the outputs
// bypass the caches, it writes to blocks on the stack, from which stream_copy() copies.
template <typename T, typename G, typename Step>
struct Pass {
  const UpdateArgs<T, G>& a;
  const Step& step;
  bool& finite;

  STARLING_INLINE void operator()() const {
    bool all = true;
    for (size_t begin = 0; begin < a.count; begin += kBlock)
      all &= block(begin, a.count - begin < kBlock ? a.count - begin : kBlock);
    if (a.stream) stream_fence();
    finite = all;
  }

  STARLING_INLINE bool block(size_t begin, size_t n) const {
    alignas(64) T stack[Step::kStates + 1][kBlock];
    T* state_out[Step::kStates + 1] = {};
    for (int k = 0; k < Step::kStates; ++k) state_out[k] = a.stream ? stack[k] : a.state_out[k] + begin;
    T* w = a.stream ? stack[Step::kStates] : a.parameter_out + begin;
    const bool all = pass_range(a, step, begin, n, w, state_out);
    if (a.stream) {
      stream_copy(a.parameter_out + begin, w, n * sizeof(T));
      for (int k = 0; k < Step::kStates; ++k) stream_copy(a.state_out[k] + begin, stack[k], n * sizeof(T));
    }
    if (a.bf16_out != nullptr) {
      alignas(64) Bf16 half[kBlock];
      Bf16* const narrow = a.stream ? half : a.bf16_out + begin;
      narrow_to(w, narrow, n);
      if (a.stream) stream_copy(a.bf16_out + begin, half, n * sizeof(Bf16));
    }
    return all;
  }
};

// AveragePass moves averaged weights by the share `take` of the way to the new parameters w. `to` may be
// `from`.
template <typename T>
struct AveragePass {
  const T* w;
  const T* from;
  T* to;
  size_t count;
  T take;

  STARLING_INLINE void operator()() const {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) to[i] = from[i] + take * (w[i] - from[i]);
  }
};

}  // namespace

template <typename T, typename G>
bool UpdateRule::apply_typed(const UpdateArgs<T, G>& args, double lr, int64_t step) const {
  if (average_state() < 0) return apply_step(args, lr, step);
  // The averaged weights are 0 before the first step, which makes them the parameters.
  const T take = static_cast<T>(step == 1 ? 1.0 : 1.0 - spec_.ema_decay);
  const int index = average_state();
  bool finite = true;
  for (size_t begin = 0; begin < args.count; begin += kAveraged) {
    const UpdatePart<T, G> part(args, begin, std::min(args.count, begin + kAveraged), state_count());
    const UpdateArgs<T, G>& a = part.args;
    finite &= apply_step(a, lr, step);
    dispatch(isa_, AveragePass<T>{a.parameter_out, a.state[index], a.state_out[index], a.count, take});
  }
  return finite;
}

// Makes the step without averaging.
template <typename T, typename G>
bool UpdateRule::apply_step(const UpdateArgs<T, G>& args, double lr, int64_t step) const {
  STARLING_CHECK(args.sources >= 1 && step >= 1, "sources ({}) and step ({}) must be at least 1",
                 args.sources, step);
  const auto run = [&](const auto& rule) {
    bool finite = true;
    dispatch(isa_, Pass<T, G, std::decay_t<decltype(rule)>>{args, rule, finite});
    return finite;
  };
  switch (kind_) {
    case Kind::kSgdPlain:
      return run(SgdPlainStep<T>(spec_, lr, step));
    case Kind::kSgd:
      return run(SgdStep<T, false>(spec_, lr, step));
    case Kind::kNesterov:
      return run(SgdStep<T, true>(spec_, lr, step));
    case Kind::kAdam:
      return run(AdamStep<T, false>(spec_, lr, step));
    case Kind::kAdamW:
      return run(AdamStep<T, true>(spec_, lr, step));
    case Kind::kAdaGrad:
      return run(AdaGradStep<T>(spec_, lr, step));
  }
  return false;
}

bool UpdateRule::apply(const UpdateArgs<float, float>& args, double lr, int64_t step) const {
  return apply_typed(args, lr, step);
}
bool UpdateRule::apply(const UpdateArgs<float, Bf16>& args, double lr, int64_t step) const {
  return apply_typed(args, lr, step);
}
bool UpdateRule::apply(const UpdateArgs<double, double>& args, double lr, int64_t step) const {
  return apply_typed(args, lr, step);
}

UpdateRule::UpdateRule(const OptimizerSpec& spec, Isa isa) : spec_(spec), isa_(isa) {
  if (spec.name == "sgd" || spec.name == "lars") {
    kind_ = spec.momentum == 0.0                  ? Kind::kSgdPlain
            : spec.nesterov && spec.name == "sgd" ? Kind::kNesterov
                                                  : Kind::kSgd;
    if (kind_ != Kind::kSgdPlain) names_ = {"momentum"};
  } else if (spec.name == "adam" || spec.name == "adamw" || spec.name == "lamb") {
    kind_ = spec.name == "adam" ? Kind::kAdam : Kind::kAdamW;
    names_ = {"exp_avg", "exp_avg_sq"};
  } else if (spec.name == "adagrad") {
    kind_ = Kind::kAdaGrad;
    names_ = {"sum"};
  } else {
    const std::string near = nearest(spec.name, {"sgd", "adam", "adamw", "adagrad", "lars", "lamb"});
    throw ConfigError(
        "optimizer.name",
        fmt::format("unknown optimizer '{}'{}; use one of sgd, adam, adamw, adagrad, lars, lamb", spec.name,
                    near.empty() ? "" : fmt::format(", did you mean '{}'?", near)));
  }
  if (spec.ema_decay > 0) names_.emplace_back(kAverageState);
}

UpdateRule make_update_rule(const OptimizerSpec& spec, Isa isa) {
  return UpdateRule(spec, isa);
}

}  // namespace starling
