// Nests of tensors: what a user's data set, model and loss pass to each other if one tensor is not enough.
//
// A nest is a tensor, or a std::pair, std::tuple, std::array or std::vector of nests. A struct of at most
// eight public members that are nests is a nest, too:
//
//   struct Words { at::Tensor ids, lengths; };
//   struct Output { at::Tensor image, mean, log_variance; };
//
// Starling carries the tensors of a nest as a list, in the order of the members.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "starling/data/nest_parts.h"

namespace starling {

// A tensor, or a nest of tensors.
template <typename T>
concept TensorNest = nest::Shape<std::remove_cvref_t<T>>::nest();

// Appends the tensors of a nest to `all`, in the order of the members.
template <TensorNest T>
void append_tensors(const T& value, Tensors& all) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    all.push_back(value);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](const auto&... member) { (append_tensors(member, all), ...); }, value);
  } else if constexpr (requires { value.begin(); }) {
    for (const auto& member : value) append_tensors(member, all);
  } else {
    nest::with_members(value, [&](const auto&... member) { (append_tensors(member, all), ...); });
  }
}

// Returns the tensors of a nest, in the order of the members.
template <TensorNest T>
Tensors tensors_of(const T& value) {
  Tensors all;
  append_tensors(value, all);
  return all;
}

// What a loss or a metric returns.
template <typename F>
using ResultOnBatch = typename nest::ResultOfPair<F>::type;

// Calls a loss or a metric with the outputs of a model and the targets of a batch. `f` may take
//
//   (const at::Tensor& output, const at::Tensor& target)
//   (const at::Tensor& …)                  the outputs and then the targets, one tensor each
//   (nest of the outputs, nest of the targets)
//   (nest of the outputs)                  if the data set has no targets
//
// A function object that is a template takes (output, target). Errors: ConfigError, naming `what`, if `f`
// takes another number of tensors.
template <typename F>
ResultOnBatch<F> call_on_batch(F& f, const Tensors& outputs, const Tensors& targets,
                               const std::string& what) {
  using R = ResultOnBatch<F>;
  if constexpr (!nest::HasSignature<F>) {
    if (outputs.size() != 1 || targets.size() != 1) nest::refuse_call(what, outputs.size(), targets.size());
    return f(outputs[0], targets[0]);
  } else {
    using Parameters = typename nest::Signature<F>::Parameters;
    static_assert(nest::Shape<Parameters>::nest() || nest::takes_some<F>(),
                  "a loss or metric takes tensors, or nests of tensors (starling/data/nest.h)");
    Tensors all = outputs;
    all.insert(all.end(), targets.begin(), targets.end());
    if (auto result = nest::call_spread<R>(f, all)) return std::move(*result);
    if constexpr (nest::Shape<Parameters>::nest()) {
      if constexpr (std::tuple_size_v<Parameters> == 2) {
        using First = std::tuple_element_t<0, Parameters>;
        using Second = std::tuple_element_t<1, Parameters>;
        constexpr int first = nest::Shape<First>::tensors(), second = nest::Shape<Second>::tensors();
        const bool fits = (first < 0 || static_cast<size_t>(first) == outputs.size()) &&
                          (second < 0 || static_cast<size_t>(second) == targets.size());
        if (!fits) nest::refuse_call(what, outputs.size(), targets.size());
        size_t of_outputs = 0, of_targets = 0;
        return f(nest::take<First>(outputs, of_outputs), nest::take<Second>(targets, of_targets));
      } else if (auto result = nest::call_nested<Parameters, R>(f, all)) {
        return std::move(*result);
      }
    }
    nest::refuse_call(what, outputs.size(), targets.size());
  }
}

// Calls net.forward() with the inputs of a batch and returns the tensors of its result. `forward` may take
// one tensor for each input, all inputs as Tensors, or nests of them. Errors: ConfigError if it takes another
// number of tensors.
template <typename Net>
Tensors call_forward(Net& net, const Tensors& inputs) {
  auto forward = [&net](const auto&... input) -> decltype(net.forward(input...)) {
    return net.forward(input...);
  };
  using Forward = decltype(forward);
  constexpr bool of_one = std::is_invocable_v<Forward&, const at::Tensor&>;
  if constexpr (of_one) {
    if (inputs.size() == 1) return tensors_of(forward(inputs[0]));
  }
  if constexpr (requires { &Net::forward; }) {
    using Function = nest::Signature<decltype(&Net::forward)>;
    using R = std::remove_cvref_t<typename Function::Result>;
    using Parameters = typename Function::Parameters;
    static_assert(TensorNest<R>, "forward() returns a tensor or a nest of tensors (starling/data/nest.h)");
    if (auto result = nest::call_spread<R>(forward, inputs)) return tensors_of(*result);
    if constexpr (nest::Shape<Parameters>::nest()) {
      if (auto result = nest::call_nested<Parameters, R>(forward, inputs)) return tensors_of(*result);
    } else {
      static_assert(nest::takes_some<Forward>(),
                    "forward() takes tensors, or nests of tensors (starling/data/nest.h)");
    }
  } else if constexpr (std::is_invocable_v<Forward&, const Tensors&> && !of_one) {
    return tensors_of(forward(inputs));
  } else {
    static_assert(of_one, "forward() takes tensors, or nests of tensors (starling/data/nest.h)");
  }
  nest::refuse_forward(inputs.size());
}

}  // namespace starling
