#include "starling/nn/layer_volumes.h"

#include <torch/library.h>
#include <torch/types.h>

#include <unordered_map>
#include <unordered_set>

#include "starling/base/error.h"

namespace starling {
namespace {

using Shape = std::vector<int64_t>;

const void* storage_of(const at::Tensor& t) {
  return t.storage().unsafeGetStorageImpl();
}

// While a NoInitialization exists, parameters that are drawn from a distribution keep the values that their
// memory had. A large model then costs no time. It costs no memory either, because its pages are never
// touched.
class NoInitialization {
 public:
  NoInitialization() {
    const auto nothing = [](at::Tensor& self, double, double, std::optional<at::Generator>) -> at::Tensor& {
      return self;
    };
    library_.impl("uniform_", nothing);
    library_.impl("normal_", nothing);
  }

 private:
  torch::Library library_{torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__};
};

// Returns the result that a recorded layer returns instead of computing. It depends on a parameter. It is no
// leaf of the graph, so that the model may change it in place.
at::Tensor zeros_after_parameter(at::IntArrayRef shape, const at::TensorOptions& options) {
  at::Tensor leaf = at::zeros(shape, options);
  leaf.set_requires_grad(true);
  return leaf.clone();
}

// While a Recorder exists, convolutions and products with a parameter of `module` record their volumes and
// return zeros instead of computing.
class Recorder {
 public:
  explicit Recorder(const torch::nn::Module& module);

  std::vector<LayerVolume> layers;

 private:
  // Records a layer if `weight` is a parameter of the module or a view of one. Returns true if it recorded
  // one. positions: the number of places at which the layer multiplies its whole weight. outputs: the number
  // of elements of the result.
  bool note(LayerKind kind, const at::Tensor& input, const at::Tensor& weight, int64_t positions,
            int64_t outputs);
  at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                         at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed);
  at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

  std::unordered_map<const void*, std::string> names_;  // by the parameter's storage
  std::unordered_set<const void*> counted_;             // weights of the layers recorded so far
  torch::Library library_{torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__};
};

Recorder::Recorder(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const std::string& key = item.key();
    const size_t dot = key.rfind('.');
    names_.emplace(storage_of(item.value()), dot == std::string::npos ? key : key.substr(0, dot));
  }
  library_.impl("convolution",
                [this](const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>&,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                       bool transposed, at::IntArrayRef, int64_t) {
                  return convolution(input, weight, stride, padding, dilation, transposed);
                });
  library_.impl("linear",
                [this](const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias) { return linear(input, weight, bias); });
  library_.impl("mm", [this](const at::Tensor& rows, const at::Tensor& weight) {
    if (note(LayerKind::kLinear, rows, weight, rows.size(0), rows.size(0) * weight.size(1)))
      return zeros_after_parameter({rows.size(0), weight.size(1)}, rows.options());
    at::AutoDispatchBelowADInplaceOrView below;
    return at::mm(rows, weight);
  });
  library_.impl("addmm", [this](const at::Tensor& bias, const at::Tensor& rows, const at::Tensor& weight,
                                const at::Scalar& beta, const at::Scalar& alpha) {
    if (note(LayerKind::kLinear, rows, weight, rows.size(0), rows.size(0) * weight.size(1)))
      return zeros_after_parameter({rows.size(0), weight.size(1)}, rows.options());
    at::AutoDispatchBelowADInplaceOrView below;
    return at::addmm(bias, rows, weight, beta, alpha);
  });
}

bool Recorder::note(LayerKind kind, const at::Tensor& input, const at::Tensor& weight, int64_t positions,
                    int64_t outputs) {
  const auto name = names_.find(storage_of(weight));
  if (name == names_.end()) return false;
  const bool first = counted_.insert(storage_of(weight)).second;
  layers.push_back({name->second, kind, first ? weight.numel() : 0, input.numel(), outputs,
                    input.requires_grad(), weight.numel() * positions});
  return true;
}

at::Tensor Recorder::convolution(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                                 at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed) {
  if (transposed) {
    throw ConfigError("model",
                      "it has a transposed convolution, whose volumes are not defined; leave out what needs "
                      "them, such as --hybrid");
  }
  Shape shape = {input.size(0), weight.size(0)};
  int64_t positions = input.size(0);
  for (int64_t i = 2; i < input.dim(); ++i) {
    const auto at = [&](at::IntArrayRef values) { return values.size() == 1 ? values[0] : values[i - 2]; };
    const int64_t reach = at(dilation) * (weight.size(i) - 1) + 1;
    shape.push_back((input.size(i) + 2 * at(padding) - reach) / at(stride) + 1);
    positions *= shape.back();
  }
  note(LayerKind::kConvolution, input, weight, positions, c10::multiply_integers(shape));
  return zeros_after_parameter(shape, input.options());
}

at::Tensor Recorder::linear(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
  const int64_t rows = input.numel() / input.size(-1);
  if (!note(LayerKind::kLinear, input, weight, rows, rows * weight.size(0))) {
    at::AutoDispatchBelowADInplaceOrView below;
    return at::linear(input, weight, bias);
  }
  Shape shape = input.sizes().vec();
  shape.back() = weight.size(0);
  return zeros_after_parameter(shape, input.options());
}

Model make_uninitialized(const ModelFactory& factory) {
  const NoInitialization none;
  return factory();
}

}  // namespace

std::vector<LayerVolume> layer_volumes(const ModelFactory& factory, const ModelShape& shape) {
  const at::AutoGradMode with_graph(true);  // the graph tells which inputs depend on parameters
  const Model model = make_uninitialized(factory);
  model.module->train();
  Shape one = shape.input_shape;
  one.insert(one.begin(), 1);
  Recorder recorder(*model.module);
  model.forward(Tensors{at::zeros(one, shape.text ? at::kLong : at::kFloat)});
  return recorder.layers;
}

}  // namespace starling
