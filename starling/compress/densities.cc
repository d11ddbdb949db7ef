#include "starling/compress/densities.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr double kExponent = -0.3;

double density_at(double scale, uint64_t weights) {
  return std::min(1.0, scale * std::pow(static_cast<double>(weights), kExponent));
}

// Reads a number above 0 and at most 1. Returns 0 for any other text.
double density_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value > 0 && value <= 1 ? value : 0;
}

std::string names_of(std::span<const LayerSize> layers) {
  std::vector<std::string> names;
  for (const LayerSize& layer : layers) names.push_back(layer.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

LayerDensities layer_densities(std::span<const LayerSize> layers, double density,
                               const LayerDensities& given) {
  LayerDensities densities = given;
  std::vector<LayerSize> rest;
  double weights = 0;
  for (const LayerSize& layer : layers) {
    if (given.contains(layer.name)) continue;
    rest.push_back(layer);
    weights += static_cast<double>(layer.weights);
  }
  double low = 0, high = 1;
  for (const LayerSize& layer : rest)
    high = std::max(high, std::pow(static_cast<double>(layer.weights), -kExponent));
  constexpr int kHalvings = 100;  // more than a double has bits
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    double kept = 0;
    for (const LayerSize& layer : rest)
      kept += density_at(middle, layer.weights) * static_cast<double>(layer.weights);
    (kept < density * weights ? low : high) = middle;
  }
  for (const LayerSize& layer : rest) densities[layer.name] = density_at(high, layer.weights);
  return densities;
}

LayerDensities parse_densities(std::string_view text, std::span<const LayerSize> layers,
                               const std::string& where) {
  LayerDensities densities;
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos)
      throw ConfigError(where, fmt::format("\"{}\" is not LAYER=DENSITY, as in fc1=0.08", entry));
    const std::string name(entry.substr(0, equals));
    const double density = density_of(entry.substr(equals + 1));
    if (density == 0) {
      throw ConfigError(where, fmt::format("the density \"{}\" of {} is not a number above 0 and at most 1",
                                           entry.substr(equals + 1), name));
    }
    if (std::none_of(layers.begin(), layers.end(), [&](const LayerSize& l) { return l.name == name; })) {
      throw ConfigError(where, fmt::format("the model has no layer \"{}\" that is pruned: it has {}", name,
                                           names_of(layers)));
    }
    if (!densities.emplace(name, density).second)
      throw ConfigError(where, fmt::format("the layer {} has two densities; give one", name));
  }
  return densities;
}

uint64_t kept_of(uint64_t weights, double density) {
  const auto kept = static_cast<uint64_t>(std::llround(density * static_cast<double>(weights)));
  return std::clamp<uint64_t>(kept, 1, weights);
}

std::vector<uint64_t> largest(std::span<const float> values, uint64_t keep) {
  std::vector<uint64_t> positions(values.size());
  std::iota(positions.begin(), positions.end(), uint64_t{0});
  if (keep < positions.size()) {
    const auto border = positions.begin() + static_cast<std::ptrdiff_t>(keep);
    std::nth_element(positions.begin(), border, positions.end(), [&](uint64_t a, uint64_t b) {
      const float x = std::fabs(values[a]), y = std::fabs(values[b]);
      return x != y ? x > y : a < b;
    });
    positions.erase(border, positions.end());
    std::sort(positions.begin(), positions.end());
  }
  return positions;
}

}  // namespace starling
