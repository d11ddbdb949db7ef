#include "starling/nn/tensor_parallel/plain_linear.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/types.h>

#include <utility>

#include "starling/nn/layers/weight_exchange.h"

namespace starling {
namespace {

// Returns the exchange of the layer whose transposed weight is `factor`. Null if there is none.
const WeightExchange* exchange_of(const at::Tensor& factor) {
  return factor.dim() == 2 && factor.is_view() ? WeightExchange::of(factor._base()) : nullptr;
}

at::Tensor matmul_of_any_model(const at::Tensor& x, const at::Tensor& factor) {
  const WeightExchange* layer = exchange_of(factor);
  if (layer == nullptr) return at::native::matmul(x, factor);
  const LayerExchange& exchange = layer->exchange;
  at::Tensor y = at::native::matmul(exchange.enter ? exchange.enter(x) : x, factor);
  const bool has_bias = layer->bias.defined();
  if (has_bias && !exchange.bias_last) y = y + layer->bias;
  if (exchange.leave) y = exchange.leave(y);
  return has_bias && exchange.bias_last ? y + layer->bias : y;
}

}  // namespace

void exchange_with(torch::nn::LinearImpl& layer, LayerExchange exchange) {
  auto kept = std::make_unique<WeightExchange>(std::move(exchange), layer.bias);
  torch::autograd::impl::materialize_autograd_meta(layer.weight)->hooks_.push_back(std::move(kept));
  layer.bias.reset();
}

PlainLinears::PlainLinears()
    : library_(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU,
                                                __FILE__, __LINE__)) {
  library_->impl("matmul", matmul_of_any_model);
}

PlainLinears::~PlainLinears() = default;

}  // namespace starling
