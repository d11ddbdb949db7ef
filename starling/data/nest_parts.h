// The parts of nests of tensors (starling/data/nest.h) that a user does not call.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace starling {

// Tensors in the order in which functions take them.
using Tensors = std::vector<at::Tensor>;

namespace nest {

// Throws ConfigError: the parameters of a loss or metric do not fit the tensors.
[[noreturn]] void refuse_call(const std::string& what, size_t outputs, size_t targets);
// Throws ConfigError: a nest has more tensors than there are.
[[noreturn]] void refuse_nest(size_t tensors);
// Throws ConfigError: the parameters of a forward function do not fit the tensors.
[[noreturn]] void refuse_forward(size_t inputs);

// Converts to every type. It counts the members of a struct and has no value.
struct Anything {
  template <typename T>
  operator T() const;
};

template <typename T, size_t... I>
constexpr bool made_of(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), Anything{})...}; };
}

// Returns the number of members of a struct: 0 if there are none or more than eight.
template <typename T, size_t N = 9>
constexpr size_t members() {
  if constexpr (N == 0) {
    return 0;
  } else if constexpr (made_of<T>(std::make_index_sequence<N>())) {
    return N > 8 ? 0 : N;
  } else {
    return members<T, N - 1>();
  }
}

// Calls f(member, …) with the members of a struct.
template <typename T, typename F>
decltype(auto) with_members(T& value, const F& f) {
  constexpr size_t n = members<std::remove_const_t<T>>();
  if constexpr (n == 1) {
    auto& [a] = value;
    return f(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = value;
    return f(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = value;
    return f(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = value;
    return f(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = value;
    return f(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, g] = value;
    return f(a, b, c, d, e, g);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, g, h] = value;
    return f(a, b, c, d, e, g, h);
  } else {
    auto& [a, b, c, d, e, g, h, i] = value;
    return f(a, b, c, d, e, g, h, i);
  }
}

// A std::tuple of the types of the arguments.
struct TypesOf {
  template <typename... M>
  std::type_identity<std::tuple<std::remove_cvref_t<M>...>> operator()(M&...) const {
    return {};
  }
};
template <typename T>
using MemberTypes = typename decltype(with_members(std::declval<T&>(), TypesOf{}))::type;

// Whether T is a nest, and how many tensors it has: -1 if a vector decides that.
template <typename T>
struct Shape {
  static constexpr bool is_struct = std::is_class_v<T> && std::is_aggregate_v<T>;
  static constexpr bool has_members() {
    if constexpr (is_struct) {
      return members<T>() > 0;
    } else {
      return false;
    }
  }
  static constexpr bool nest() {
    if constexpr (has_members()) {
      return Shape<MemberTypes<T>>::nest();
    } else {
      return false;
    }
  }
  static constexpr int tensors() {
    if constexpr (nest()) {
      return Shape<MemberTypes<T>>::tensors();
    } else {
      return 0;
    }
  }
};
template <>
struct Shape<at::Tensor> {
  static constexpr bool nest() { return true; }
  static constexpr int tensors() { return 1; }
};
template <typename... T>
struct Shape<std::tuple<T...>> {
  static constexpr bool nest() { return (Shape<T>::nest() && ...); }
  static constexpr int tensors() {
    return ((Shape<T>::tensors() < 0) || ...) ? -1 : (Shape<T>::tensors() + ... + 0);
  }
};
template <typename A, typename B>
struct Shape<std::pair<A, B>> : Shape<std::tuple<A, B>> {};
template <typename T, size_t N>
struct Shape<std::array<T, N>> {
  static constexpr bool nest() { return Shape<T>::nest(); }
  static constexpr int tensors() {
    return Shape<T>::tensors() < 0 ? -1 : static_cast<int>(N) * Shape<T>::tensors();
  }
};
template <typename T>
struct Shape<std::vector<T>> {
  static constexpr bool nest() { return Shape<T>::nest(); }
  static constexpr int tensors() { return -1; }
};

// The parameters and the result of a function that is neither overloaded nor a template.
template <typename F>
struct Signature : Signature<decltype(&F::operator())> {};
template <typename R, typename... P>
struct Signature<R (*)(P...)> {
  using Result = R;
  using Parameters = std::tuple<std::remove_cvref_t<P>...>;
};
template <typename R, typename... P>
struct Signature<R (*)(P...) noexcept> : Signature<R (*)(P...)> {};
template <typename R, typename C, typename... P>
struct Signature<R (C::*)(P...)> : Signature<R (*)(P...)> {};
template <typename R, typename C, typename... P>
struct Signature<R (C::*)(P...) const> : Signature<R (*)(P...)> {};
template <typename R, typename C, typename... P>
struct Signature<R (C::*)(P...) noexcept> : Signature<R (*)(P...)> {};
template <typename R, typename C, typename... P>
struct Signature<R (C::*)(P...) const noexcept> : Signature<R (*)(P...)> {};

template <typename F>
concept HasSignature =
    std::is_pointer_v<F> || std::is_member_function_pointer_v<F> || requires { &F::operator(); };

// Takes the tensors of a nest from `all`, from `next` on. A vector of tensors takes all that are left.
template <typename T>
T take(const Tensors& all, size_t& next) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (next >= all.size()) refuse_nest(all.size());
    return all[next++];
  } else if constexpr (requires(T t) { t.push_back(t.front()); }) {
    T taken;
    while (next < all.size()) taken.push_back(take<typename T::value_type>(all, next));
    return taken;
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      // Braces evaluate from left to right.
      return T{take<std::remove_cvref_t<std::tuple_element_t<I, T>>>(all, next)...};
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return std::apply([](auto&&... member) { return T{std::move(member)...}; },
                      take<MemberTypes<T>>(all, next));
  }
}

// Whether f can be called with so many tensors.
template <typename F, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return std::is_invocable_v<F&, decltype((static_cast<void>(I), std::declval<const at::Tensor&>()))...>;
}
template <typename F, size_t N = 8>
constexpr bool takes_some() {
  if constexpr (N == 0) {
    return false;
  } else {
    return takes<F>(std::make_index_sequence<N>()) || takes_some<F, N - 1>();
  }
}
template <typename F, size_t... I>
decltype(auto) spread(F& f, const Tensors& all, std::index_sequence<I...>) {
  return f(all[I]...);
}

// Calls f(tensor, …) if f takes as many tensors as there are, up to N.
template <typename R, typename F, size_t N = 8>
std::optional<R> call_spread(F& f, const Tensors& all) {
  if constexpr (N == 0) {
    return std::nullopt;
  } else {
    if constexpr (takes<F>(std::make_index_sequence<N>())) {
      if (all.size() == N) return spread(f, all, std::make_index_sequence<N>());
    }
    return call_spread<R, F, N - 1>(f, all);
  }
}

// Calls f with the nests that its signature asks for, made of the tensors in order.
template <typename Parameters, typename R, typename F>
std::optional<R> call_nested(F& f, const Tensors& all) {
  constexpr int wanted = Shape<Parameters>::tensors();
  if (wanted >= 0 && static_cast<size_t>(wanted) != all.size()) return std::nullopt;
  if (wanted < 0 && all.size() < std::tuple_size_v<Parameters>) return std::nullopt;
  size_t next = 0;
  return std::apply([&](auto&&... argument) -> R { return f(argument...); }, take<Parameters>(all, next));
}

template <typename F>
struct ResultOfPair {
  using type = std::invoke_result_t<F&, const at::Tensor&, const at::Tensor&>;
};
template <HasSignature F>
struct ResultOfPair<F> {
  using type = typename Signature<F>::Result;
};

}  // namespace nest
}  // namespace starling
