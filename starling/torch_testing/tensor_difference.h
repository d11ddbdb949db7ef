// The difference of tensors as tests state it: |actual - expected| / |expected| in the 2-norm, computed in fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace starling {

// 0 where both are zero everywhere; infinity where the shapes differ, a value is not finite, or only `expected` is zero.
double relative_difference(const at::Tensor& actual, const at::Tensor& expected);

// The tensor that differs most, by name. A name that only one side has differs by infinity.
struct NamedDifference {
  std::string name;
  double difference = 0;
};
NamedDifference largest_difference(const std::map<std::string, at::Tensor>& actual,
                                   const std::map<std::string, at::Tensor>& expected);

}  // namespace starling
