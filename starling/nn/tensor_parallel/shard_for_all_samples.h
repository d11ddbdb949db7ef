// Model-parallel layers inside a data-parallel run (Krizhevsky, One weird trick for parallelizing
// convolutional neural networks, arXiv 1404.5997, scheme a). The ranks have different samples and shard a
// fully connected layer by output feature. The layer gathers its inputs from all ranks. Each rank computes
// its features of all samples, and sends each other rank the features of that rank's samples. For n samples
// per rank, p ranks and a layer [in, out], each rank receives per step
//
//   2 n in (p − 1)  +  2 n out (p − 1)/p      elements.
//
// The first term halves if no gradient of the inputs is wanted. If p does not divide `out`, the second term
// is the mean over the ranks. Data parallelism receives 2 (|W| + out) (p − 1)/p elements instead, for the
// weight and the bias. The way that moves fewer elements is chosen. FireCaffe (Iandola et al., 2016) compares
// |D| = p n in with |W| and leaves the outputs out.
#pragma once

#include <string>
#include <vector>

#include "starling/nn/layer_volumes.h"
#include "starling/nn/model.h"
#include "starling/nn/tensor_parallel/tensor_group.h"
#include "starling/nn/tensor_parallel/tensor_slice.h"

namespace starling {

// Shards the named layers of a freshly made model. Every rank must have equally many samples. The gradients
// of the layers' parameters are sums over the ranks of the gradients of each rank's mean loss. The group must
// outlive the model. Errors: ConfigError (train.hybrid) for a name that is not a starling::Linear of the
// model; the message lists those that are. ConfigError also for a name that occurs twice, and for a layer
// with fewer outputs than there are ranks.
TensorSlices shard_for_all_samples(Model& model, TensorGroup& group, const std::vector<std::string>& layers);

// A fully connected layer that could be model-parallel. The formulas are at the top of this file.
struct HybridLayer {
  std::string name;
  int64_t parameters = 0;       // elements of the weight and of the bias
  int64_t inputs = 0;           // elements, for all samples of a step
  int64_t outputs = 0;          // elements, for all samples of a step
  int64_t features = 0;         // output features of the layer
  bool input_gradient = false;  // whether backward computes the gradient of the inputs

  // Returns the elements that a rank receives in a step if the layer is model-parallel among `ranks` ranks.
  double model_elements(int ranks) const;
  // Returns the elements that a rank receives in a step if the layer is data-parallel.
  double data_elements(int ranks) const;
  // True if model parallelism moves fewer elements and every rank gets a feature.
  bool model_parallel(int ranks) const;
};

// Returns every starling::Linear that a forward pass of the model uses, once each. If a forward pass uses a
// layer several times, its inputs and outputs are sums. No other thread may use torch meanwhile
// (layer_volumes.h).
std::vector<HybridLayer> hybrid_layers(const ModelFactory& factory, const ModelShape& shape,
                                       int64_t global_batch);

}  // namespace starling
