// Makes the graph of a model of the zoo for device placement: its blocks with their measured times and bytes.
#pragma once

#include <cstdint>
#include <functional>

#include "starling/base/clock.h"
#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/place/graph.h"
#include "starling/spec/run_spec.h"

namespace starling {

// A model and random samples of its shape.
struct PlacedModel {
  ModelFactory factory;
  Batch batch;  // of a step
};

// Returns the shape in which a model of the zoo is placed. Pictures have the size for which the model is
// published, but at most `pixels` in height and width if that is above 0. Texts have model.vocabulary words,
// or 256.
ModelShape placed_shape(const ModelSpec& spec, int64_t pixels);

// Makes a model of the zoo with a batch of `samples` random samples, which depend on the seed. They
// have the shape placed_shape(). Errors: those of zoo_model().
PlacedModel placed_model(const ModelSpec& spec, int64_t pixels, int64_t samples, uint64_t seed);

// Measures the blocks of the model with one micro-batch on this process. Each block is a group, and the graph
// is a chain. state_bytes are the parameters with a gradient and one optimizer state. kept_bytes are the
// outputs of a block, which is less than what autograd keeps inside. The time of an update is that of one sum
// over the parameters. All times are the least of several rounds. No further round begins after 15 s, so that
// ranks that wait meet in time.
//
// next_round: called after each round with whether the function wants another one. Returns whether there is
// one.
//
// branches: A block of parallel branches (the modules branch1, branch2, … of GoogLeNet) becomes one group for
// each branch and a group that joins them. The time of the block is divided by the multiplications of the
// branches. Errors: ConfigError for a model without blocks.
PlacementGraph profile_model(const PlacedModel& model, int micro_batches, bool branches, const Clock& clock,
                             const std::function<bool(bool more)>& next_round);

}  // namespace starling
