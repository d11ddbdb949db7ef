// ModelParts is what a strategy must know if a replica's model is sharded over several ranks (stages of a
// pipeline, slices of layers).
//
// The strategy trains its rank's part as if the part were a model. It works over a group of the ranks that
// hold the same part of all replicas. Only numbers of the whole model, such as a norm, need the other parts.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "starling/comm/group.h"
#include "starling/optim/layer_rule.h"
#include "starling/parallel/replica/flat_layout.h"
#include "starling/parallel/replica/replica.h"

namespace starling {

// The ranks that hold the parts of a replica, and how shared parameters are counted.
struct ModelParts {
  Group* group = nullptr;  // the ranks that hold one replica together; null: this rank holds it alone
  // The parameters of this rank whose copy on another rank of the group is the one that counts (tied
  // weights).
  std::vector<std::string> counted_elsewhere;
  // The ranks among which single parameters are sharded, and the names of these parameters. Null: every
  // parameter of this rank is whole.
  Group* slices = nullptr;
  std::vector<std::string> sliced = {};
};

// Returns the sum of `own` over all parts. Collective over parts.group.
double sum_over_parts(const ModelParts& parts, double own);

// Adds up the squares of sliced parameters over parts.slices. `squares` has the order of `parameters`. Those
// of whole parameters stay. Collective over parts.slices.
void sum_over_slices(const ModelParts& parts, const std::vector<NamedTensor>& parameters,
                     std::vector<LayerSquares>& squares);

// Returns whether this rank counts the parameter.
bool counts_here(const ModelParts& parts, const std::string& parameter);

// Returns a name for this rank's part of the model that no other part has: that of one of its parameters.
const std::string& name_of_part(const ModelParts& parts, const std::vector<NamedTensor>& parameters);

// [begin, end), in elements of a flat range.
using FlatRange = std::pair<size_t, size_t>;

// Returns the ranges of the parameters that another rank counts. layout: the layout of `parameters`, by their
// index.
std::vector<FlatRange> ranges_counted_elsewhere(const ModelParts& parts,
                                                const std::vector<NamedTensor>& parameters,
                                                const FlatLayout& layout);
// Returns the pieces of [begin, end) that lie in none of `holes`, in ascending order.
std::vector<FlatRange> pieces_outside(size_t begin, size_t end, std::vector<FlatRange> holes);

}  // namespace starling
