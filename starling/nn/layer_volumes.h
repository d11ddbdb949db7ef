// What the layers of a model weigh and take in, which decides how they are best divided (Iandola et al., FireCaffe,
// 2016, equations 1 and 2): data parallelism exchanges ∇W, model parallelism exchanges D and ∇D,
//   |W| = Σ ch · filters · filter_w · filter_h      |D| = Σ ch · w · h · batch
// summed over convolutions and fully connected layers, D being the *input* of each: of parallel branches, each its own.
#pragma once

#include <string>
#include <vector>

#include "starling/nn/model.h"

namespace starling {

enum class LayerKind { kConvolution, kLinear };

struct LayerVolume {
  std::string name;  // the module of the weight: features.0, layer1.0.conv1, transformer.h.0.attn.c_attn
  LayerKind kind = LayerKind::kConvolution;
  int64_t weights = 0;   // |W|, elements, without biases; 0 where an earlier layer has the same weight
  int64_t inputs = 0;    // |D| of one sample, elements
  int64_t products = 0;  // multiplications of one sample, forward
};

// Every convolution and fully connected layer that one forward pass in training mode meets, in its order. Nothing is
// trained and nothing large is computed: weights stay as allocated, and the layers give zeros of the right shape. While
// it runs it changes what ATen does on the CPU in the whole process, so nothing else may use torch meanwhile.
std::vector<LayerVolume> layer_volumes(const ModelFactory& factory, const ModelShape& shape);

}  // namespace starling
