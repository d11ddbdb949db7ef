#include "starling/parallel/replica.h"

#include <torch/torch.h>

namespace starling {

Replica make_replica(const ModelFactory& factory, at::ScalarType type, uint64_t seed) {
  torch::manual_seed(seed);
  Replica replica;
  replica.model = factory();
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

int64_t parameter_count(const Replica& replica) {
  int64_t count = 0;
  for (const NamedTensor& p : replica.parameters) count += p.tensor.numel();
  return count;
}

}  // namespace starling
