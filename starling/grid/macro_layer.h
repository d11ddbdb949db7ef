// One layer of the network of Le et al. (arXiv 1112.6209) and Coates et al. (Deep learning with COTS HPC
// systems, ICML 2013), over a grid of ranks: filters, L2 pooling, local contrast normalization. It learns as
// a sparse autoencoder with a decoder of its own:
//
//   min over W, V:  mean over samples of  |Vᵀ W x − x|² + λ Σ_j sqrt(ε + Σ_{i in pool j} (W x)_i²)
//
// W and V are locally connected. The penalty makes few pools respond to an image. A smaller W and a larger V
// would decrease it without effect, so the filters of W have norm 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "starling/grid/grid_layers.h"
#include "starling/grid/halo_exchange.h"

namespace starling {

// The options of a macro layer. Lengths are in pixels of the layer's input.
struct MacroLayerOptions {
  int64_t maps = 8;                 // filters per position
  ImageWindows fields = {8, 2, 0};  // receptive fields of the filters
  ImageWindows pool = {3, 1, 0};    // windows of the pools, in output positions of the filters
  double epsilon = 1e-8;            // under the root of a pool
  ContrastNormOptions norm = {};
};

// A layer of images [n, channels, height, width].
struct ImageSize {
  int64_t channels = 1, height = 1, width = 1;

  bool operator==(const ImageSize&) const = default;
};

// Sums over a rank's part of the pixels and pools, and over the samples of a batch.
struct AutoencoderSums {
  double error = 0;            // of (Vᵀ W x − x)²
  double square = 0;           // of x²
  double response = 0;         // of the pools' outputs
  double response_square = 0;  // of the squares of the pools' outputs
};

// MacroLayer is a rank's part of the layer. Not thread-safe.
class MacroLayer {
 public:
  // input: the whole input. The first filters of W are a function of (seed, position). V begins as a
  // multiple of W that is at most 1, such that Vᵀ W is about the identity.
  // The grid must outlive the layer. Errors: ConfigError for options that a part of the layer refuses.
  MacroLayer(GridGroup& grid, const MacroLayerOptions& options, const ImageSize& input, uint64_t seed,
             at::ScalarType type);

  // The size of the layer's whole output.
  const ImageSize& output() const { return output_; }
  // The filters W and V of this rank's positions.
  GridLocallyConnected2d encoder() const { return encoder_; }
  GridLocallyConnected2d decoder() const { return decoder_; }

  // Returns the features: this rank's part of the normalized pools for its part of x. No gradient is kept.
  at::Tensor features(const at::Tensor& x);
  // Computes the gradients of the objective in W and V, and returns the sums. x is this rank's part.
  AutoencoderSums learn(const at::Tensor& x, double sparsity);

 private:
  const MacroLayerOptions options_;
  ImageSize positions_, output_;
  GridLocallyConnected2d encoder_, decoder_;
  GridL2Pool2d pool_;
  GridLocalContrastNorm2d norm_;
};

// Returns the size of a macro layer's output. Errors: ConfigError if a window does not fit. Its where() is
// "windows" or "channels, maps" for the filters, "pool", or "size" for the normalization.
ImageSize macro_layer_output(const MacroLayerOptions& options, const ImageSize& input);

// The halos that all ranks together send for a batch, in numbers, by the formula in halo_plan.h.
struct MacroLayerHalos {
  int64_t features = 0;  // of features()
  int64_t learning = 0;  // of learn(): forward and backward
};
MacroLayerHalos macro_layer_halos(const RankGrid& grid, const MacroLayerOptions& options,
                                  const ImageSize& input, int64_t samples);

}  // namespace starling
