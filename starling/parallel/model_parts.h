// ModelParts: what a strategy must know where the model of a replica is divided over several ranks (stages of a pipeline, slices
// of layers). The strategy trains its rank's part as if that were a model, over a group of the ranks that hold the same part
// of the other replicas; only what is a number of the whole model, a norm, needs the other parts.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "starling/comm/group.h"
#include "starling/parallel/flat_layout.h"
#include "starling/parallel/replica.h"

namespace starling {

struct ModelParts {
  Group* group = nullptr;  // the ranks that hold a replica between them; null: this rank holds all of it
  // Of this rank's parameters those of which another rank of the group has a copy that counts (tied weights).
  std::vector<std::string> counted_elsewhere;
};

// The sum of every part's number. Collective over parts.group.
double sum_over_parts(const ModelParts& parts, double own);

bool counts_here(const ModelParts& parts, const std::string& parameter);

// [begin, end) in elements of a flat range.
using FlatRange = std::pair<size_t, size_t>;

// Where the parameters lie that another rank counts. layout: of `parameters`, by their index.
std::vector<FlatRange> ranges_counted_elsewhere(const ModelParts& parts,
                                                const std::vector<NamedTensor>& parameters,
                                                const FlatLayout& layout);
// The pieces of [begin, end) that lie in none of `holes`, ascending.
std::vector<FlatRange> pieces_outside(size_t begin, size_t end, std::vector<FlatRange> holes);

}  // namespace starling
