// Which weights of which layer remain when a network is pruned by magnitude. Source: Han, Pool, Tran, Dally,
// Learning both Weights and Connections for Efficient Neural Networks, arXiv 1506.02626.
//
// The density of a layer is the share of its weights that remain. One number, the density of the network,
// determines those of all layers: a layer of n weights has the density
//
//   d(n) = min(1, c n^-0.3)
//
// with the c for which the density of the network is right. Small layers are more sensitive, so they keep a
// larger share. The exponent is a choice of Starling: the paper sets a threshold for each layer.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

// A layer that is pruned.
struct LayerSize {
  std::string name;      // for example "fc1"
  uint64_t weights = 0;  // number of weights, without the bias; above 0
};

// Densities by layer.
using LayerDensities = std::map<std::string, double, std::less<>>;

// Returns the density of each layer. `density` is that of the network, above 0 and at most 1. `given` has the
// layers whose densities are set. They do not count for the rule: `density` is that of all other layers
// together.
LayerDensities layer_densities(std::span<const LayerSize> layers, double density,
                               const LayerDensities& given);

// Reads "fc1=0.08,fc2=0.1". Errors: ConfigError of `where` for a text without "=", or for a number that is
// not above 0 and at most 1. A layer that occurs twice or that `layers` lacks is such an error, too. The
// message lists the layers.
LayerDensities parse_densities(std::string_view text, std::span<const LayerSize> layers,
                               const std::string& where);

// Returns the number of weights that remain of `weights`: the density times the weights, rounded, and at
// least 1.
uint64_t kept_of(uint64_t weights, double density);

// Returns the positions of the `keep` numbers of largest magnitude, in increasing order. Of equal magnitudes
// the first remain. No number may be NaN.
std::vector<uint64_t> largest(std::span<const float> values, uint64_t keep);

}  // namespace starling
