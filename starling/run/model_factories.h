// Factories of the models that a run trains.
#pragma once

#include <functional>

#include "starling/comm/group.h"
#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Takes hooks and returns a factory of models. If the configuration asks for synchronized batch norm, the
// models take their statistics over the ranks by these hooks.
using SyncedModelFactory = std::function<ModelFactory(const ModelHooks&)>;

// Returns the hooks of models whose batch norm is synchronized over `group`, which must outlive the models.
// Returns no hooks if `group` is null.
ModelHooks model_hooks(Group* group);

// Loads the weights of model.init into the module, if the key is given. In an fp64 run the module's
// floating-point tensors become fp64 first, so fp64 values of the file keep all their digits. Errors: those
// of load_model().
void load_initial(torch::nn::Module& module, const RunSpec& spec);

// Returns the factory of the zoo's model that spec.model names. The models fit the data and have the weights
// of model.init if the key is given. Errors: those of zoo_model().
SyncedModelFactory zoo_factory(const RunSpec& spec, const SourceInfo& data);

}  // namespace starling
