// A data set that lies in memory as two tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "starling/data/source.h"

namespace starling {

// Sample i is input[i] and target[i]. The tensors are shared, not copied. Errors: DataError where their first sizes differ.
std::shared_ptr<const Source> tensor_source(at::Tensor input, at::Tensor target);

}  // namespace starling
