// The layers of a model that Deep Compression prunes and clusters (Han, Mao, Dally, arXiv 1510.00149).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "starling/compress/compressed_file.h"
#include "starling/compress/densities.h"
#include "starling/parallel/replica/replica.h"

namespace starling {

// The weight matrix or the kernels of one layer. `weight` is the module's own parameter.
class SharedWeights {
 public:
  // `layer` is the name of the layer. The parameter is called LAYER.weight.
  SharedWeights(std::string layer, bool convolution, at::Tensor weight);

  const std::string& layer() const { return layer_; }
  std::string parameter() const { return layer_ + ".weight"; }
  bool convolution() const { return convolution_; }
  const at::Tensor& weight() const { return weight_; }
  uint64_t weights() const { return static_cast<uint64_t>(weight_.numel()); }

  // Keeps the largest weights by magnitude, as many as `density` says, and sets all others to 0. The weights
  // must be finite.
  void prune(double density);
  // Sets the weights that were pruned to 0 again.
  void apply_mask();
  // Returns the gradient of the weights that remain. It is 0 at those that were pruned.
  at::Tensor masked_gradient() const;
  // The number of weights that remain.
  uint64_t kept() const { return static_cast<uint64_t>(positions_.numel()); }

  // Divides the remaining weights into at most 2^bits clusters by k-means, and at most one for every
  // kWeightsPerCluster weights. Each weight becomes the centroid of its cluster.
  void cluster(int bits);
  // The centroids, fp32. They may be updated in place.
  const at::Tensor& centroids() const { return centroids_; }
  // Returns the gradient of each centroid: the sum of the gradients of its weights.
  at::Tensor centroid_gradient() const;
  // Sets each weight to the centroid of its cluster.
  void apply_centroids();
  // Returns what a file holds of the clustered weights. half: the codebook is fp16.
  CompressedTensor compressed(bool half) const;

 private:
  std::string layer_;
  bool convolution_;
  at::Tensor weight_;     // contiguous
  at::Tensor pruned_;     // true at weights that were pruned; undefined before prune()
  at::Tensor positions_;  // [kept] int64, of these weights
  at::Tensor clusters_;   // [kept] int64, undefined before cluster()
  at::Tensor centroids_;
};

// A codebook takes 2 or 4 bytes per cluster. A cluster for every few weights would take more than it saves.
inline constexpr int64_t kWeightsPerCluster = 4;

// Returns the fully connected and the convolutional layers of a model, in its order. Errors: ConfigError that
// names the parameters if the model has matrices that belong to no such layer, such as embeddings.
std::vector<SharedWeights> shared_weights_of(const Replica& replica, const std::string& model);

// Checks that fp16 can hold the values of a tensor. Errors: ConfigError with its name.
void require_half(const std::string& name, const at::Tensor& tensor);

// Returns a tensor that is stored whole. half: fp32 elements become fp16.
CompressedTensor dense_tensor(const std::string& name, const at::Tensor& tensor, bool half);

}  // namespace starling
