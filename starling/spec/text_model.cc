#include "starling/spec/text_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace starling {
namespace {

// Returns the divisors of `heads` that are multiples of `ranks`, which divides `heads`.
std::vector<int64_t> divisible_divisors(int64_t heads, int64_t ranks) {
  std::vector<int64_t> found;
  for (int64_t count = ranks; count <= heads; count += ranks) {
    if (heads % count == 0) found.push_back(count);
  }
  return found;
}

std::optional<ModelFault> llama_fault(const ModelSpec& model) {
  if (model.kv_heads < 0 || model.heads % model.key_value_heads() != 0) {
    return ModelFault{{"model.kv_heads", "model.heads"},
                      fmt::format("model.kv_heads = {} does not divide model.heads = {}, and every key and "
                                  "value head serves the same number of query heads: use a divisor of {}",
                                  model.kv_heads, model.heads, model.heads)};
  }
  if (model.width / model.heads % 2 != 0) {
    return ModelFault{{"model.width", "model.heads"},
                      fmt::format("a head of {} numbers (model.width / model.heads) cannot be rotated in "
                                  "pairs: use a model.width that is an even multiple of model.heads",
                                  model.width / model.heads)};
  }
  if (model.hidden < 0)
    return ModelFault{{"model.hidden"}, fmt::format("is {}, must be at least 0", model.hidden)};
  if (model.dropout > 0)
    return ModelFault{{"model.dropout", "model.name"}, "llama has no dropout: leave out model.dropout"};
  return std::nullopt;
}

}  // namespace

std::optional<ModelFault> text_model_fault(const ModelSpec& model) {
  if (!model.reads_text()) return std::nullopt;
  if (model.width % model.heads != 0) {
    return ModelFault{
        {"model.heads", "model.width"},
        fmt::format("model.width = {} is not a multiple of model.heads = {}: use a width of {}, or a "
                    "number of heads that divides the width",
                    model.width, model.heads, (model.width / model.heads + 1) * model.heads)};
  }
  if (model.name == "llama") return llama_fault(model);
  return std::nullopt;
}

std::optional<ModelFault> tensor_axis_fault(const ModelSpec& model, int64_t ranks) {
  if (!model.reads_text()) return std::nullopt;
  if (model.heads % ranks != 0) {
    return ModelFault{{"model.heads", "train.mesh"},
                      fmt::format("model.heads = {} is not a multiple of tensor={}, and each rank needs "
                                  "whole heads: use {} heads, or a tensor axis that divides {}",
                                  model.heads, ranks, (model.heads / ranks + 1) * ranks, model.heads)};
  }
  const int64_t kv_heads = model.key_value_heads();
  if (model.name == "llama" && kv_heads % ranks != 0) {
    return ModelFault{
        {"model.kv_heads", "train.mesh"},
        fmt::format("model.kv_heads = {} is not a multiple of tensor={}, and each rank needs whole heads: "
                    "use {} key and value heads, or a tensor axis that divides {}",
                    kv_heads, ranks, fmt::join(divisible_divisors(model.heads, ranks), " or "), kv_heads)};
  }
  return std::nullopt;
}

}  // namespace starling
