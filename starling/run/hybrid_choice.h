// Which layers of a hybrid run are model-parallel (train.hybrid).
#pragma once

#include <string>
#include <vector>

#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/nn/tensor_parallel/all_samples.h"
#include "starling/spec/run_spec.h"

namespace starling {

struct HybridChoice {
  std::vector<std::string> layers;  // model-parallel ones
  std::string why;                  // one line, for people
};

// auto: each layer by bytes (nn/tensor_parallel/all_samples.h), of the samples that `data` has; else the names as given.
// train.hybrid must not be "none". Not while anything else uses torch.
HybridChoice choose_hybrid(const RunSpec& spec, const ModelFactory& factory, const SourceInfo& data);

}  // namespace starling
