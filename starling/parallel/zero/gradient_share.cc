#include "starling/parallel/zero/gradient_share.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace starling {

double GradientShare::sum_of_squares(const ModelParts& parts) const {
  std::vector<NamedTensor> own;
  for (const size_t i : parameters) own.push_back(replica.parameters[i]);
  const auto first = static_cast<size_t>(begin), end = first + static_cast<size_t>(gradient.numel());
  double sum = 0;
  for (const auto& [from, to] : pieces_outside(first, end, ranges_counted_elsewhere(parts, own, layout))) {
    const at::Tensor piece =
        gradient.narrow(0, static_cast<int64_t>(from - first), static_cast<int64_t>(to - from));
    sum += piece.to(at::kDouble).square().sum().item<double>();
  }
  return sum;
}

std::string GradientShare::first_not_finite() const {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const NamedTensor& parameter = replica.parameters[parameters[i]];
    const auto offset = static_cast<int64_t>(layout.offset[i]);
    const int64_t from = std::max(offset, begin);
    const int64_t to = std::min(offset + parameter.tensor.numel(), begin + gradient.numel());
    if (from < to && !at::isfinite(gradient.narrow(0, from - begin, to - from)).all().item<bool>())
      return parameter.name;
  }
  return "";
}

}  // namespace starling
