// States of models whose parameters ranks have divided (nn/tensor_parallel/tensor_slice.h), between their whole and divided form.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "starling/nn/tensor_parallel/tensor_slice.h"

namespace starling {

// The parameter that a tensor of a state belongs to: "momentum/fc1.weight" -> "fc1.weight".
std::string parameter_of_state(const std::string& name);

// A rank's parts of whole tensors, by the names of a state. A tensor of other sizes than the whole stays as it is, for whoever
// takes it over to refuse.
std::map<std::string, at::Tensor> cut_state(const std::map<std::string, at::Tensor>& whole,
                                            const TensorSlices& slices, int size, int rank);

}  // namespace starling
