// The words for the enumerators of run_spec.h in configurations, in the order of the enumerators.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

constexpr std::string_view words_of(Precision) {
  return "fp32 bf16 fp64";
}
constexpr std::string_view words_of(ThreadsMode) {
  return "op batch layer hogwild";
}
constexpr std::string_view words_of(HogwildUpdates) {
  return "dense sparse";
}
constexpr std::string_view words_of(Order) {
  return "shuffled sequential";
}
constexpr std::string_view words_of(BatchNorm) {
  return "local sync";
}
constexpr std::string_view words_of(CentralMode) {
  return "sharded master";
}
constexpr std::string_view words_of(ConvAlgorithm) {
  return "auto im2col";
}
constexpr std::string_view words_of(Shard) {
  return "none optimizer gradients parameters";
}
constexpr std::string_view words_of(OnFailure) {
  return "auto stop continue";
}
constexpr std::string_view words_of(Quorum) {
  return "majority any";
}
constexpr std::string_view words_of(DeviceKind) {
  return "cpu auto cuda privateuseone";
}
constexpr std::string_view words_of(OptimizerShare) {
  return "auto replicated sharded";
}

// Splits a text at single spaces.
std::vector<std::string> split_words(std::string_view words);

// Returns the position of `word` in `words`, or nothing.
std::optional<size_t> find_word(std::string_view words, std::string_view word);

template <class E>
  requires requires(E e) { words_of(e); }
std::string to_string(E value) {
  return split_words(words_of(value)).at(static_cast<size_t>(value));
}

template <class E>
std::optional<E> enum_from_string(std::string_view word) {
  const auto index = find_word(words_of(E{}), word);
  return index ? std::optional<E>(static_cast<E>(*index)) : std::nullopt;
}

}  // namespace starling
