#include "starling/mcmc/combine.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/mcmc/component_walk.h"
#include "starling/mcmc/product.h"
#include "starling/mcmc/random_stream.h"

namespace starling {
namespace {

constexpr uint64_t kParametricKey = 0x70617261;  // tells the streams of one seed apart

constexpr std::array kNames = {
    CombinationName{Combination::kParametric, "parametric"},
    CombinationName{Combination::kNonparametric, "nonparametric"},
    CombinationName{Combination::kSemiparametric, "semiparametric"},
    CombinationName{Combination::kSemiparametricKernelWeights, "semiparametric-w"},
    CombinationName{Combination::kAverage, "average"},
    CombinationName{Combination::kPool, "pool"},
};

std::vector<Moments> moments_of_all(std::span<const PosteriorDraws> parts) {
  std::vector<Moments> moments;
  for (const PosteriorDraws& part : parts) moments.push_back(moments_of(part));
  return moments;
}

CombinedDraws parametric(std::span<const PosteriorDraws> parts, uint64_t seed) {
  CombinedDraws combined;
  combined.moments = product_of(moments_of_all(parts));
  const std::vector<double>& mean = combined.moments.mean;
  const auto lower = cholesky(combined.moments.covariance);
  if (!lower) refuse_product();
  RandomStream random(key_of(seed, kParametricKey, 0));
  const size_t d = mean.size();
  combined.draws.dimensions = parts.front().dimensions;
  std::vector<double> z(d);
  for (int64_t i = 0; i < parts.front().count(); ++i) {
    for (double& number : z) number = random.normal();
    for (size_t j = 0; j < d; ++j) {
      double x = mean[j];
      for (size_t k = 0; k <= j; ++k) x += (*lower)(j, k) * z[k];
      combined.draws.values.push_back(x);
    }
  }
  return combined;
}

PosteriorDraws average(std::span<const PosteriorDraws> parts) {
  PosteriorDraws draws = parts.front();
  for (size_t i = 0; i < draws.values.size(); ++i) {
    double sum = 0;
    for (const PosteriorDraws& part : parts) sum += part.values[i];
    draws.values[i] = sum / static_cast<double>(parts.size());
  }
  return draws;
}

PosteriorDraws pool(std::span<const PosteriorDraws> parts) {
  PosteriorDraws draws{parts.front().dimensions, {}};
  for (const PosteriorDraws& part : parts)
    draws.values.insert(draws.values.end(), part.values.begin(), part.values.end());
  return draws;
}

}  // namespace

std::span<const CombinationName> combination_names() {
  return kNames;
}

const char* name_of(Combination combination) {
  return kNames[static_cast<size_t>(combination)].name;
}

Combination combination_named(const std::string& name) {
  std::string known;
  for (const CombinationName& row : kNames) {
    if (name == row.name) return row.combination;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  throw ConfigError("--combine", fmt::format("\"{}\" is no estimator; write one of {}", name, known));
}

CombinedDraws combine_draws(Combination combination, std::span<const PosteriorDraws> parts, uint64_t seed) {
  if (parts.front().count() < 2)
    throw ConfigError("--draws",
                      fmt::format("{} draws have no moments; take at least 2", parts.front().count()));
  CombinedDraws combined;
  switch (combination) {
    case Combination::kParametric:
      return parametric(parts, seed);
    case Combination::kAverage:
      combined.draws = average(parts);
      break;
    case Combination::kPool:
      combined.draws = pool(parts);
      break;
    default:
      combined = walk_components(combination, parts, seed);
      break;
  }
  combined.moments = moments_of(combined.draws);
  return combined;
}

}  // namespace starling
