// The difference of two tensors as tests state it: |actual - expected| / |expected| in the 2-norm, computed
// in fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace starling {

// Returns the difference. It is 0 if both tensors are zero everywhere. It is infinity if the shapes differ,
// if a value is not finite, or if only `expected` is zero.
double relative_difference(const at::Tensor& actual, const at::Tensor& expected);

// The name of a tensor and its difference.
struct NamedDifference {
  std::string name;
  double difference = 0;
};
// Returns the tensor that differs most. A name that only one side has differs by infinity.
NamedDifference largest_difference(const std::map<std::string, at::Tensor>& actual,
                                   const std::map<std::string, at::Tensor>& expected);

}  // namespace starling
