#include "starling/nn/layers/weight_exchange.h"

#include <torch/csrc/autograd/variable.h>

namespace starling {

const WeightExchange* WeightExchange::of(const at::TensorBase& weight) {
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(weight);
  if (meta == nullptr) return nullptr;
  for (const auto& hook : meta->hooks_) {
    if (const auto* found = dynamic_cast<const WeightExchange*>(hook.get())) return found;
  }
  return nullptr;
}

}  // namespace starling
