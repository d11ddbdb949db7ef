#include "starling/parallel/replica/replica.h"

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "starling/base/error.h"
#include "starling/parallel/replica/default_generator.h"

namespace starling {

Model seeded_model(const ModelFactory& factory, uint64_t seed) {
  static std::mutex drawing;
  const std::lock_guard lock(drawing);
  const KeptGenerator kept;
  seed_default_generator(seed);
  return factory();
}

namespace {

// Converts the floating-point tensors of a module. torch::nn::Module::to() also converts integers and flags,
// which must stay what they are.
void convert(torch::nn::Module& module, at::ScalarType type) {
  std::vector<std::pair<at::Tensor, at::Tensor>> others;  // tensor, value
  for (const auto& tensors : {module.parameters(), module.buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.is_floating_point()) others.emplace_back(tensor, tensor.detach());
    }
  }
  module.to(type);
  for (auto& [tensor, value] : others) tensor.set_data(value);
}

}  // namespace

Replica make_replica(const ModelFactory& factory, at::ScalarType type, uint64_t seed) {
  Replica replica;
  replica.model = seeded_model(factory, seed);
  torch::nn::Module& module = *replica.model.module;
  if (type == at::kBFloat16) {
    for (const auto& item : module.named_modules("", /*include_self=*/true)) {
      // Layers with running averages stay fp32, because bf16 would lose small changes of the averages. ATen's
      // kernels accept the mixed types.
      if (item.value()->named_buffers(/*recurse=*/false).contains("running_mean")) continue;
      for (auto& parameter : item.value()->parameters(/*recurse=*/false)) {
        if (parameter.is_floating_point()) parameter.set_data(parameter.to(type));
      }
    }
  } else {
    convert(module, type);
  }
  module.train();
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) replica.parameters.push_back({item.key(), item.value()});
  }
  for (const auto& item : module.named_buffers()) replica.buffers.push_back({item.key(), item.value()});
  return replica;
}

void to_channels_last(Replica& replica) {
  at::NoGradGuard no_grad;
  for (NamedTensor& p : replica.parameters) {
    if (p.tensor.dim() == 4) p.tensor.set_data(p.tensor.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

Tensors inputs_of(const Model& model, const Batch& batch, at::ScalarType type, bool channels_last) {
  Tensors inputs = batch.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool exact =
        std::find(model.exact_inputs.begin(), model.exact_inputs.end(), i) != model.exact_inputs.end();
    if (inputs[i].is_floating_point() && !exact) inputs[i] = inputs[i].to(type);
    if (channels_last && inputs[i].dim() == 4)
      inputs[i] = inputs[i].contiguous(at::MemoryFormat::ChannelsLast);
  }
  return inputs;
}

at::Tensor BatchLoss::mean() const {
  return weighted ? WeightedLoss(sum, weight).mean() : sum;
}

BatchLoss batch_loss(const Model& model, const Batch& batch, at::ScalarType type, bool channels_last) {
  if (model.samples) model.samples->keys = batch.keys;
  const Tensors outputs = model.forward(inputs_of(model, batch, type, channels_last));
  WeightedLoss loss = model.loss.of(outputs, batch.targets());
  if (model.loss.weighted()) return {std::move(loss.sum), loss.weight, true};
  return {std::move(loss.sum), static_cast<double>(batch.size()), false};
}

double share_factor(const BatchLoss& loss, Group* group, int64_t all_samples) {
  const int size = group == nullptr ? 1 : group->size();
  if (!loss.weighted)
    return all_samples == 0 || size == 1 ? 1 : loss.weight * size / static_cast<double>(all_samples);
  double all = loss.weight;
  if (size > 1) all_reduce(*group, &all, 1, DataType::kFp64, ReduceOp::kSum);
  // Without any weight, the loss of the step is its sum, as on one process.
  return size / (all > 0 ? all : 1);
}

int64_t parameter_count(const Replica& replica) {
  int64_t count = 0;
  for (const NamedTensor& p : replica.parameters) count += p.tensor.numel();
  return count;
}

void refuse_loss(const Replica& replica, int rank, int64_t step, double loss) {
  std::string parameter;
  for (const NamedTensor& p : replica.parameters) {
    if (!at::isfinite(p.tensor).all().item<bool>()) {
      parameter = p.name;
      break;
    }
  }
  const std::string where = parameter.empty()
                                ? "all parameters are finite: look at the data or the loss function"
                                : "the first parameter that is not finite is " + parameter;
  throw Error(ErrorCode::kNumeric,
              fmt::format("rank {}: the loss is {} at step {}; {}; try a lower --lr, warm-up (--set "
                          "schedule.warmup_steps=…) or --set optimizer.clip_norm=1",
                          rank, loss, step, where),
              rank);
}

void refuse_loss(int rank, int64_t step, double loss) {
  throw Error(ErrorCode::kNumeric,
              fmt::format("rank {}: the loss is {} at step {}; try a lower --lr, warm-up (--set "
                          "schedule.warmup_steps=…) or --set optimizer.clip_norm=1",
                          rank, loss, step),
              rank);
}

std::string first_not_finite(const Replica& replica, const std::function<at::Tensor(size_t i)>& gradient_of) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < replica.parameters.size(); ++i) {
    if (!at::isfinite(gradient_of(i)).all().item<bool>()) return replica.parameters[i].name;
  }
  return "";
}

void refuse_gradient(int rank, int64_t step, const std::string& what) {
  throw Error(
      ErrorCode::kNumeric,
      fmt::format("rank {}: {} is not finite at step {}, though the loss is; try a lower --lr, warm-up "
                  "(--set schedule.warmup_steps=…) or smaller initial parameters",
                  rank, what, step),
      rank);
}

void require_finite(const std::map<std::string, at::Tensor>& parameters, int rank, int64_t step) {
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>()) continue;
    throw Error(
        ErrorCode::kNumeric,
        fmt::format("rank {}: the parameter {} is not finite after step {}, so it is not saved; try a lower "
                    "--lr, warm-up (--set schedule.warmup_steps=…) or, with --codec fp16, bf16",
                    rank, name, step),
        rank);
  }
}

const at::Tensor& fitting(const std::map<std::string, at::Tensor>& tensors, const std::string& name,
                          const at::Tensor& like) {
  const auto it = tensors.find(name);
  if (it == tensors.end()) {
    throw Error(ErrorCode::kCheckpoint,
                "the checkpoint has no tensor '" + name + "'; it belongs to another model or optimizer");
  }
  if (it->second.sizes() != like.sizes()) {
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format(
            "the shape of tensor '{}' in the checkpoint differs from the model's ({} and {} elements); the "
            "checkpoint belongs to another model",
            name, it->second.numel(), like.numel()));
  }
  return it->second;
}

}  // namespace starling
