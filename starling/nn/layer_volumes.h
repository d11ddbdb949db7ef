// The size of each layer's weights and inputs. These sizes decide whether data or model parallelism moves
// fewer bytes (Iandola et al., FireCaffe, 2016, equations 1 and 2). Data parallelism exchanges ∇W, and model
// parallelism exchanges D and ∇D:
//   |W| = Σ ch · filters · filter_w · filter_h      |D| = Σ ch · w · h · batch
// The sums run over convolutions and fully connected layers. D is the *input* of each layer: each parallel
// branch counts its own input.
#pragma once

#include <string>
#include <vector>

#include "starling/nn/model.h"

namespace starling {

// The kinds of layers that are counted.
enum class LayerKind { kConvolution, kLinear };

// The sizes of one layer.
struct LayerVolume {
  std::string name;  // module that holds the weight: features.0, layer1.0.conv1, transformer.h.0.attn.c_attn
  LayerKind kind = LayerKind::kConvolution;
  int64_t weights = 0;  // |W|, elements, without biases; 0 if an earlier layer uses this weight too
  int64_t inputs = 0;   // |D| of one sample, elements
  int64_t outputs = 0;  // of one sample, elements
  // Whether a parameter lies before the layer, so that backward computes the gradient of the inputs.
  bool input_gradient = false;
  int64_t products = 0;  // multiplications of one sample, forward
};

// Returns every convolution and fully connected layer that one forward pass in training mode executes, in
// that order. The function trains nothing and computes nothing large: weights keep the values that their
// memory had, and the layers return zeros of the right shape. While the function runs, it replaces operations
// of ATen on the CPU in the whole process, so no other thread may use torch. Errors: Error (kInternal) if the
// model has a transposed convolution.
std::vector<LayerVolume> layer_volumes(const ModelFactory& factory, const ModelShape& shape);

}  // namespace starling
