// One rank's training, built from a RunSpec: what the program and starling::init share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/data/factory.h"
#include "starling/data/loader.h"
#include "starling/nn/model.h"
#include "starling/run/choices.h"
#include "starling/run/surroundings.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Makes models whose batch norm is synced over the ranks where the spec asks for it.
using SyncedModelFactory = std::function<ModelFactory(const ModelHooks&)>;

LoaderOptions loader_options(const RunSpec& spec, int rank, int ranks, int64_t first_step);

// The hooks of a model in this run; group must outlive the models.
ModelHooks model_hooks(Group* group);

// Models of the zoo that fit the data, with the weights of model.init where that is given.
SyncedModelFactory zoo_factory(const RunSpec& spec, const SourceInfo& data);

// The model-parallel layers of a hybrid run, told to the sink; none where train.hybrid is "none". Before anything else of the
// run computes.
std::vector<std::string> hybrid_layers_of(const RunSpec& spec, const SyncedModelFactory& factory,
                                          const Source& data, const Surroundings& around);

// Collective. Trains as the spec says and returns the summary, complete on rank 0.
RunResult run_training(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
                       const Surroundings& around);

}  // namespace starling
