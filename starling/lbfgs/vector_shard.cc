#include "starling/lbfgs/vector_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "starling/base/error.h"

namespace starling {

double larger(double a, double b) {
  return std::isnan(a) || a >= b ? a : b;
}

VectorSlice slice_of_shard(int64_t elements, int shards, int shard) {
  const int64_t width = slice_width(elements, shards);
  return {std::min(elements, shard * width), std::min(elements, (shard + 1) * width)};
}

VectorShard::VectorShard(int64_t elements, int shards, int shard, int memory)
    : elements_(elements),
      slice_(slice_of_shard(elements, shards, shard)),
      vectors_(s_of(memory), std::vector<double>(static_cast<size_t>(slice_.size()), 0)) {}

std::span<double> VectorShard::vector(VectorId id) {
  if (id >= vectors_.size())
    throw CommError(fmt::format("an instruction names vector {} of {}", id, vectors_.size()));
  return vectors_[id];
}

void VectorShard::combine(VectorId target, std::span<const VectorTerm> terms) {
  std::vector<double> sum(static_cast<size_t>(slice_.size()), 0);
  for (const VectorTerm& term : terms) {
    const std::span<const double> from = vector(term.vector);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += term.factor * from[i];
  }
  const std::span<double> to = vector(target);
  std::copy(sum.begin(), sum.end(), to.begin());
}

double VectorShard::dot(const VectorPair& pair) {
  const std::span<const double> a = vector(pair.a), b = vector(pair.b);
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

VectorShard::Part VectorShard::finish_gradient(std::span<const double> sum, int64_t samples, double ridge) {
  const std::span<const double> x = vector(kTrial);
  const std::span<double> g = vector(kTrialGradient);
  Part part;
  for (size_t i = 0; i < x.size(); ++i) {
    g[i] = sum[i] / static_cast<double>(samples);
    if (slice_.begin + static_cast<int64_t>(i) != elements_ - 1) {
      g[i] += ridge * x[i];
      part.squares += x[i] * x[i];
    }
    part.largest_gradient = larger(part.largest_gradient, std::abs(g[i]));
  }
  return part;
}

}  // namespace starling
