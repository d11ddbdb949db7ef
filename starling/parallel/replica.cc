#include "starling/parallel/replica.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <mutex>

#include "starling/base/error.h"

namespace starling {

namespace {

// The default generator is the process's: ranks that are threads of one process draw from it one after another.
Model seeded_model(const ModelFactory& factory, uint64_t seed) {
  static std::mutex drawing;
  const std::lock_guard lock(drawing);
  torch::manual_seed(seed);
  return factory();
}

}  // namespace

Replica make_replica(const ModelFactory& factory, at::ScalarType type, uint64_t seed) {
  Replica replica;
  replica.model = seeded_model(factory, seed);
  torch::nn::Module& module = *replica.model.module;
  if (type == at::kBFloat16) {
    for (const auto& item : module.named_modules("", /*include_self=*/true)) {
      // Batch statistics in bf16 would lose the running averages: its layers stay fp32, which ATen's kernels take mixed.
      if (item.value()->named_buffers(/*recurse=*/false).contains("running_mean")) continue;
      for (auto& parameter : item.value()->parameters(/*recurse=*/false))
        parameter.set_data(parameter.to(type));
    }
  } else {
    module.to(type);
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

at::Tensor input_of(const Batch& batch, at::ScalarType type, bool channels_last) {
  at::Tensor input = batch.input;
  if (input.is_floating_point()) input = input.to(type);
  if (channels_last && input.dim() == 4) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  return input;
}

at::Tensor batch_loss(const Model& model, const Batch& batch, at::ScalarType type, bool channels_last) {
  if (model.samples) model.samples->keys = batch.keys;
  return model.loss(model.forward(input_of(batch, type, channels_last)), batch.target);
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

const at::Tensor& fitting(const std::map<std::string, at::Tensor>& tensors, const std::string& name,
                          const at::Tensor& like) {
  const auto it = tensors.find(name);
  if (it == tensors.end()) {
    throw Error(ErrorCode::kCheckpoint,
                "the checkpoint holds no tensor '" + name + "': it is of another model or optimizer");
  }
  if (it->second.sizes() != like.sizes()) {
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format(
            "the checkpoint's '{}' has another shape than the model's ({} against {} elements): it is of "
            "another model",
            name, it->second.numel(), like.numel()));
  }
  return it->second;
}

}  // namespace starling
