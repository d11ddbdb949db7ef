// Factories of the models that a run trains.
#pragma once

#include <functional>

#include "starling/comm/group.h"
#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Makes models whose batch norm is synced over the ranks where the spec asks for it.
using SyncedModelFactory = std::function<ModelFactory(const ModelHooks&)>;

// The hooks of a model in this run; group must outlive the models.
ModelHooks model_hooks(Group* group);

// Loads the weights of model.init into the module, if that is given. In an fp64 run the module's
// floating-point tensors become fp64 first, so fp64 values of the file keep all their digits. Errors: those
// of load_model().
void load_initial(torch::nn::Module& module, const RunSpec& spec);

// Models of the zoo that fit the data, with the weights of model.init where that is given.
SyncedModelFactory zoo_factory(const RunSpec& spec, const SourceInfo& data);

}  // namespace starling
