#include "starling/commands/shared_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/compress/k_means.h"
#include "starling/nn/layers/conv.h"
#include "starling/nn/layers/linear.h"

namespace starling {
namespace {

std::vector<std::byte> bytes_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().contiguous();
  std::vector<std::byte> bytes(whole.nbytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), whole.const_data_ptr(), bytes.size());
  return bytes;
}

std::span<const float> values_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

// Returns the dtype of a file. The type is one that dense_tensor() allows.
weights::Dtype dtype_of(c10::ScalarType type) {
  return type == at::kHalf   ? weights::Dtype::kF16
         : type == at::kLong ? weights::Dtype::kI64
                             : weights::Dtype::kF32;
}

// Returns the tensor as fp16. Throws if a value is too large for this type.
at::Tensor halved(const std::string& name, const at::Tensor& tensor) {
  at::Tensor half = tensor.detach().to(at::kHalf);
  if (!at::isfinite(half).all().item<bool>()) {
    throw ConfigError("--fp32-values", fmt::format("{} has values that fp16 cannot hold, which are at most "
                                                   "65504: give --fp32-values",
                                                   name));
  }
  return half;
}

}  // namespace

SharedWeights::SharedWeights(std::string layer, bool convolution, at::Tensor weight)
    : layer_(std::move(layer)), convolution_(convolution), weight_(std::move(weight)) {
  STARLING_CHECK(weight_.is_contiguous() && weight_.scalar_type() == at::kFloat, "{}", layer_);
}

void SharedWeights::prune(double density) {
  const at::NoGradGuard no_grad;
  const std::vector<uint64_t> kept = largest(values_of(weight_), kept_of(weights(), density));
  positions_ = at::tensor(std::vector<int64_t>(kept.begin(), kept.end()), at::kLong);
  pruned_ = at::ones_like(weight_.detach(), at::kBool);
  pruned_.view(-1).index_fill_(0, positions_, 0);
  apply_mask();
}

void SharedWeights::apply_mask() {
  const at::NoGradGuard no_grad;
  if (pruned_.defined()) weight_.masked_fill_(pruned_, 0);
}

at::Tensor SharedWeights::masked_gradient() const {
  return pruned_.defined() ? weight_.grad().masked_fill(pruned_, 0) : weight_.grad();
}

void SharedWeights::cluster(int bits) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = weight_.detach().view(-1).index_select(0, positions_).contiguous();
  const int64_t most = std::max<int64_t>(1, positions_.numel() / kWeightsPerCluster);
  const Clusters found = k_means(values_of(values), static_cast<int>(std::min(int64_t{1} << bits, most)));
  clusters_ = at::tensor(std::vector<int64_t>(found.of.begin(), found.of.end()), at::kLong);
  centroids_ = at::tensor(found.centroids, at::kFloat);
  apply_centroids();
}

at::Tensor SharedWeights::centroid_gradient() const {
  const at::Tensor gradients = weight_.grad().contiguous().view(-1).index_select(0, positions_);
  return at::zeros_like(centroids_).index_add_(0, clusters_, gradients);
}

void SharedWeights::apply_centroids() {
  const at::NoGradGuard no_grad;
  weight_.view(-1).index_copy_(0, positions_, centroids_.index_select(0, clusters_));
}

CompressedTensor SharedWeights::compressed(bool half) const {
  CompressedTensor tensor;
  tensor.name = parameter();
  tensor.dtype = half ? weights::Dtype::kF16 : weights::Dtype::kF32;
  tensor.shape = weight_.sizes().vec();
  tensor.clustered = true;
  tensor.values = bytes_of(half ? halved(tensor.name, centroids_) : centroids_);
  const auto* positions = positions_.const_data_ptr<int64_t>();
  const auto* clusters = clusters_.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < positions_.numel(); ++i) {
    tensor.positions.push_back(static_cast<uint64_t>(positions[i]));
    tensor.clusters.push_back(static_cast<uint16_t>(clusters[i]));
  }
  return tensor;
}

std::vector<SharedWeights> shared_weights_of(const Replica& replica, const std::string& model) {
  std::map<std::string, bool> layers;  // the name of the weight -> whether the layer is a convolution
  for (const auto& item : replica.model.module->named_modules()) {
    const torch::nn::Module* module = item.value().get();
    const bool convolution = dynamic_cast<const torch::nn::Conv2dImpl*>(module) != nullptr;
    if (convolution || dynamic_cast<const LinearImpl*>(module) != nullptr)
      layers[item.key() + ".weight"] = convolution;
  }
  std::vector<SharedWeights> shared;
  std::vector<std::string> others;
  for (const NamedTensor& parameter : replica.parameters) {
    const auto layer = layers.find(parameter.name);
    if (layer != layers.end() && parameter.tensor.numel() > 0) {
      const std::string name = parameter.name.substr(0, parameter.name.size() - std::strlen(".weight"));
      shared.emplace_back(name, layer->second, parameter.tensor);
    } else if (parameter.tensor.dim() > 1) {
      others.push_back(fmt::format("{} [{}]", parameter.name, fmt::join(parameter.tensor.sizes(), ", ")));
    }
  }
  if (others.empty() && !shared.empty()) return shared;
  if (others.empty()) others.emplace_back("no layer with weights");
  throw ConfigError("model.name",
                    fmt::format("{} cannot be compressed: only fully connected and convolutional layers are "
                                "pruned, and it has {}. Compress mlp, lenet5 or another network of images",
                                model, fmt::join(others, ", ")));
}

void require_half(const std::string& name, const at::Tensor& tensor) {
  if (tensor.is_floating_point()) halved(name, tensor);
}

CompressedTensor dense_tensor(const std::string& name, const at::Tensor& tensor, bool half) {
  at::Tensor value = tensor.detach();
  if (value.is_floating_point()) value = half ? halved(name, value) : value.to(at::kFloat);
  STARLING_CHECK(value.is_floating_point() || value.scalar_type() == at::kLong, "{}", name);
  CompressedTensor dense;
  dense.name = name;
  dense.dtype = dtype_of(value.scalar_type());
  dense.shape = value.sizes().vec();
  dense.values = bytes_of(value);
  return dense;
}

}  // namespace starling
