// How a program shards fully connected layers among the ranks of a tensor axis.
#pragma once

#include <string>
#include <vector>

namespace starling {

// What each rank holds of a fully connected layer with weight [out, in].
enum class LayerCut {
  kColumn,    // some of the outputs. Elementwise functions and then a layer by rows take them
  kRow,       // some of the inputs. The outputs are sums over the ranks, and whole
  kGathered,  // some of the outputs, which the ranks then gather. Any layer may follow
};
// Short names for the plan of a program.
inline constexpr LayerCut kColumn = LayerCut::kColumn;      // of the outputs, for a layer by rows
inline constexpr LayerCut kRow = LayerCut::kRow;            // of the inputs
inline constexpr LayerCut kGathered = LayerCut::kGathered;  // of the outputs, for any layer

// The layers whose names match a pattern.
struct LayerPlan {
  std::string pattern;  // with * for any characters
  LayerCut cut;         // how these layers are sharded
};

// The division of a model. The first pattern that matches a layer counts.
using TensorPlan = std::vector<LayerPlan>;

}  // namespace starling
