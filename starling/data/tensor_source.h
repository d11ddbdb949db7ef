// Makes a data set from tensors in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "starling/data/source.h"

namespace starling {

// Returns a source whose sample i is (input[i], target[i]). The source shares the tensors and does not copy
// them. An undefined target means that there are no targets. Errors: DataError if the first dimensions
// differ.
std::shared_ptr<const Source> tensor_source(at::Tensor input, at::Tensor target);

// Returns a source whose sample i consists of row i of each tensor: tensor_source({words, lengths}, {labels,
// weights}). The source shares the tensors. `targets` may be empty. Errors: DataError if there is no input or
// if first dimensions differ.
std::shared_ptr<const Source> tensor_source(std::vector<at::Tensor> inputs, std::vector<at::Tensor> targets);

}  // namespace starling
