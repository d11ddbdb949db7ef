#include "starling/nn/tensor_parallel/plain_linear.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <utility>

#include "starling/nn/layers/weight_exchange.h"

namespace starling {
namespace {

// Returns the exchange of the layer whose transposed weight is `factor`. Null if there is none.
const WeightExchange* exchange_of(const at::Tensor& factor) {
  return factor.dim() == 2 && factor.is_view() ? WeightExchange::of(factor._base()) : nullptr;
}

// Computes the layer. `product` multiplies its input by the transposed weight, and `bias` is that of the
// layer.
template <typename Product>
at::Tensor compute(const LayerExchange& exchange, const at::Tensor& x, const at::Tensor& bias,
                   const Product& product) {
  at::Tensor y = product(exchange.enter ? exchange.enter(x) : x);
  if (bias.defined() && !exchange.bias_last) y = y + bias;
  if (exchange.leave) y = exchange.leave(y);
  return bias.defined() && exchange.bias_last ? y + bias : y;
}

at::Tensor matmul_of_any_model(const at::Tensor& x, const at::Tensor& factor) {
  const WeightExchange* layer = exchange_of(factor);
  if (layer == nullptr) return at::native::matmul(x, factor);
  return compute(layer->exchange, x, layer->bias,
                 [&](const at::Tensor& in) { return at::native::matmul(in, factor); });
}

// Autocast multiplies by a copy of the weight that is no view of it, so the layer is found before the cast.
at::Tensor matmul_under_autocast(const at::Tensor& x, const at::Tensor& factor) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const at::ScalarType type = at::autocast::get_autocast_dtype(at::kCPU);
  const auto cast = [type](const at::Tensor& t) { return at::autocast::cached_cast(type, t, at::kCPU); };
  const WeightExchange* layer = exchange_of(factor);
  if (layer == nullptr) return at::matmul(cast(x), cast(factor));
  const at::Tensor bias = layer->bias.defined() ? cast(layer->bias) : at::Tensor();
  return compute(layer->exchange, x, bias,
                 [&](const at::Tensor& in) { return at::matmul(cast(in), cast(factor)); });
}

// Drops the warning that libtorch's own kernel under autocast is replaced.
class Silent final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

void exchange_with(torch::nn::LinearImpl& layer, LayerExchange exchange) {
  auto kept = std::make_unique<WeightExchange>(std::move(exchange), layer.bias);
  torch::autograd::impl::materialize_autograd_meta(layer.weight)->hooks_.push_back(std::move(kept));
  layer.bias.reset();
}

PlainLinears::PlainLinears() {
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  const auto take = [this](c10::DispatchKey key, auto* kernel) {
    libraries_.push_back(
        std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
    libraries_.back()->impl("matmul", kernel);
  };
  take(c10::DispatchKey::AutogradCPU, matmul_of_any_model);
  take(c10::DispatchKey::CPU, matmul_of_any_model);  // under c10::InferenceMode
  take(c10::DispatchKey::AutocastCPU, matmul_under_autocast);
}

PlainLinears::~PlainLinears() = default;

}  // namespace starling
