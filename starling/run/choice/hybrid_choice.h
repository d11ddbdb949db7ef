// Chooses the layers of a hybrid run that are model-parallel (train.hybrid).
#pragma once

#include <string>
#include <vector>

#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/nn/tensor_parallel/shard_for_all_samples.h"
#include "starling/spec/run_spec.h"

namespace starling {

// The chosen layers and the reason.
struct HybridChoice {
  std::vector<std::string> layers;  // names of the model-parallel layers
  std::string why;                  // one line for people
};

// Chooses the layers. For train.hybrid = auto, the function compares the bytes of each layer for the shapes
// in `data` among `ranks` ranks (nn/tensor_parallel/shard_for_all_samples.h). Otherwise it takes the names as
// given. train.hybrid must not be "none". No other thread may use torch meanwhile.
HybridChoice choose_hybrid(const RunSpec& spec, const ModelFactory& factory, const SourceInfo& data,
                           int ranks);

}  // namespace starling
