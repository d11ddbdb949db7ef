#include "starling/run/tensor_plan_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "starling/base/error.h"
#include "starling/nn/tensor_parallel/shard_model.h"
#include "starling/parallel/replica/default_generator.h"
#include "starling/parallel/replica/replica.h"

namespace starling {
namespace {

constexpr const char* kPlan = "FitOptions::tensor_plan";
constexpr const char* kRemedy =
    "a layer by columns is followed by functions of single elements without parameters, and then by a layer "
    "by rows; gather the outputs of other layers (kGathered)";

// What a model computes of the samples.
struct Computed {
  Tensors outputs;
  std::map<std::string, at::Tensor> gradients;  // by parameter, of a fixed function of the outputs
};

Computed computed(const Replica& replica, const Tensors& inputs) {
  const at::AutoGradMode recorded(true);
  Tensors copies;  // a model may change its inputs in place
  copies.reserve(inputs.size());
  for (const at::Tensor& input : inputs) copies.push_back(input.clone());
  Computed result{replica.model.forward(copies), {}};
  Tensors roots, directions;
  for (const at::Tensor& output : result.outputs) {
    if (!output.requires_grad()) continue;
    roots.push_back(output);
    directions.push_back(at::arange(output.numel(), output.options()).cos().view(output.sizes()));
  }
  if (!roots.empty()) torch::autograd::backward(roots, directions);
  for (const NamedTensor& p : replica.parameters) {
    at::Tensor& gradient = p.tensor.mutable_grad();
    result.gradients[p.name] = gradient.defined() ? gradient : at::zeros_like(p.tensor);
    gradient.reset();
  }
  return result;
}

// Computes the sharded model. Its errors name the plan.
Computed sharded(const Replica& part, const Tensors& inputs) {
  try {
    return computed(part, inputs);
  } catch (const c10::Error& error) {
    throw ConfigError(kPlan, fmt::format("the sharded model cannot be computed: {}; {}",
                                         error.what_without_backtrace(), kRemedy));
  }
}

double norm_of(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).norm().item<double>();
}

// Returns what differs. Empty if the outputs are equal up to the order of summation.
std::string difference(const at::Tensor& whole, const at::Tensor& part) {
  if (whole.sizes() != part.sizes()) {
    return fmt::format("returns a tensor [{}] instead of [{}]", fmt::join(part.sizes(), ", "),
                       fmt::join(whole.sizes(), ", "));
  }
  if (whole.numel() == 0) return {};
  const double tolerance = whole.scalar_type() == at::kDouble ? 1e-8 : 1e-3;
  const at::Tensor a = whole.to(at::kDouble).flatten(), b = part.to(at::kDouble).flatten();
  if (norm_of(a - b) <= tolerance * norm_of(a)) return {};
  const auto at = (a - b).abs().argmax().item<int64_t>();
  return fmt::format("returns other values, for example {} instead of {}", b[at].item<double>(),
                     a[at].item<double>());
}

std::string difference(const Tensors& whole, const Tensors& part) {
  if (whole.size() != part.size())
    return fmt::format("returns {} tensors instead of {}", part.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    if (std::string differs = difference(whole[i].detach(), part[i].detach()); !differs.empty())
      return differs;
  }
  return {};
}

// Returns whose gradient differs. Empty if all are equal up to the order of summation.
std::string gradient_difference(const Computed& whole, const Computed& part, const ModelSharding& sharding,
                                const TensorGroup& group) {
  double square = 0;
  for (const auto& [name, gradient] : whole.gradients) square += std::pow(norm_of(gradient), 2);
  for (const auto& [name, gradient] : whole.gradients) {
    const auto slice = sharding.slices.find(name);
    const at::Tensor a =
        slice == sharding.slices.end() ? gradient : slice->second.cut(gradient, group.size(), group.rank());
    const bool exact = a.scalar_type() == at::kDouble;
    const double allowed = (exact ? 1e-8 : 1e-2) * norm_of(a) + (exact ? 1e-10 : 1e-4) * std::sqrt(square);
    const double distance = norm_of(a - part.gradients.at(name));
    if (distance <= allowed) continue;
    return fmt::format(
        "computes another gradient of {}, which lies between sharded layers or is of one of them", name);
  }
  return {};
}

// Throws on all ranks of the axis if the sharded model differs on one of them.
void require_none(const std::string& differs, Group& group) {
  double any = differs.empty() ? 0 : 1;
  all_reduce(group, &any, 1, DataType::kFp64, ReduceOp::kMax);
  if (any == 0) return;
  const std::string what = differs.empty() ? "computes other outputs or gradients on another rank" : differs;
  throw ConfigError(kPlan, fmt::format("the sharded model {}; {}", what, kRemedy));
}

// Refuses parts that draw different numbers of random numbers, for example for masks of different sizes. The
// ranks of the axis must draw the same numbers, because each of them computes the other layers.
void require_same_generators(const Replica& part, const Tensors& inputs, uint64_t seed, Group& group) {
  seed_default_generator(seed);
  part.model.module->train();
  part.model.forward(inputs);
  const at::Tensor state = default_generator_state().contiguous();
  const std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  const auto own = static_cast<int64_t>(std::hash<std::string_view>()(bytes));
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  all_gather(group, &own, all.data(), 1, DataType::kInt64);
  if (std::all_of(all.begin(), all.end(), [&](int64_t other) { return other == own; })) return;
  throw ConfigError(kPlan,
                    "the parts of the sharded model draw different numbers of random numbers, so that the "
                    "copies of other layers would drift apart; leave out the dropout between a layer by "
                    "columns and a layer by rows, or gather the outputs (kGathered)");
}

}  // namespace

void check_tensor_plan(const StrategyParts& parts) {
  if (parts.program.tensor_plan.empty()) return;
  const KeptGenerator kept;  // the computation may draw random numbers
  const at::ScalarType type = parts.spec.train.precision == Precision::kFp64 ? at::kDouble : at::kFloat;
  const uint64_t seed = parts.spec.train.seed;
  TensorGroup group(parts.axes.tensors(), parts.environment.process.clock);
  ModelSharding sharding;
  const auto made = [&] {
    Model model = parts.factory();
    sharding = shard_model(model, group, parts.program.tensor_plan);
    return model;
  };
  const Replica whole = make_replica(parts.factory, type, seed), part = make_replica(made, type, seed);
  for (const Replica* replica : {&whole, &part}) replica->model.module->eval();
  const Tensors inputs = inputs_of(whole.model, parts.program.sample(), type, /*channels_last=*/false);
  const Computed expected = computed(whole, inputs), actual = sharded(part, inputs);
  std::string differs = difference(expected.outputs, actual.outputs);
  if (differs.empty()) differs = gradient_difference(expected, actual, sharding, group);
  require_none(differs, parts.axes.tensors());
  const at::NoGradGuard no_grad;
  require_same_generators(part, inputs, seed, parts.axes.tensors());
}

}  // namespace starling
