// Model-parallel layers inside a data-parallel run (Krizhevsky, One weird trick for parallelizing convolutional neural networks,
// arXiv 1404.5997, scheme a): the ranks have different samples, and a fully connected layer is divided among them by output
// feature. Its inputs are gathered from all ranks, each computes its features of all samples, and sends each rank those of its
// samples. For n samples a rank, p ranks, a layer [in, out], a rank receives a step
//
//   2 n in (p − 1)  +  2 n out (p − 1)/p      elements (outputs that divide evenly; half of the first where no gradient of the
//                                             inputs is asked for),
//
// against 2 |W| (p − 1)/p for data parallelism: |D| = p n in against |W| = in · out decides (Iandola et al., FireCaffe, 2016).
#pragma once

#include <string>
#include <vector>

#include "starling/nn/layer_volumes.h"
#include "starling/nn/model.h"
#include "starling/nn/tensor_parallel/tensor_group.h"
#include "starling/nn/tensor_parallel/tensor_slice.h"

namespace starling {

// Divides the named layers of a freshly made model; every rank has as many samples. The gradients of their parameters are sums
// over the ranks of the gradients of each rank's mean loss. The group outlives the model.
// Errors: ConfigError (train.hybrid) for a name that is no starling::Linear of the model, listing those that are.
TensorSlices divide_for_all_samples(Model& model, TensorGroup& group, const std::vector<std::string>& layers);

// A fully connected layer that could be model-parallel, and what each way exchanges, in elements.
struct HybridLayer {
  std::string name;
  int64_t weights = 0;  // |W|
  int64_t inputs = 0;   // |D|: of all samples of a step
  bool model_parallel() const { return inputs < weights; }
};

// Every starling::Linear of the model. Not while anything else uses torch (layer_volumes.h).
std::vector<HybridLayer> hybrid_layers(const ModelFactory& factory, const ModelShape& shape,
                                       int64_t global_batch);

}  // namespace starling
