#include "starling/torch_testing/tensor_difference.h"

#include <limits>

#include "starling/testing/relative_difference.h"

namespace starling {

double relative_difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  const auto a = actual.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto e = expected.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto size = static_cast<size_t>(a.numel());
  return relative_difference<double>({a.const_data_ptr<double>(), size}, {e.const_data_ptr<double>(), size});
}

NamedDifference largest_difference(const std::map<std::string, at::Tensor>& actual,
                                   const std::map<std::string, at::Tensor>& expected) {
  NamedDifference largest;
  const auto take = [&](const std::string& name, double difference) {
    if (difference > largest.difference || largest.name.empty()) largest = {name, difference};
  };
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    const bool absent = found == actual.end();
    take(name, absent ? std::numeric_limits<double>::infinity() : relative_difference(found->second, tensor));
  }
  for (const auto& entry : actual)
    if (!expected.contains(entry.first)) take(entry.first, std::numeric_limits<double>::infinity());
  return largest;
}

}  // namespace starling
