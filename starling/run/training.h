// One rank's training, built from a RunSpec: what the program and starling::init share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/data/loader.h"
#include "starling/data/source_factory.h"
#include "starling/nn/model.h"
#include "starling/nn/safetensors/safetensors.h"
#include "starling/run/choice/choices.h"
#include "starling/run/model_factories.h"
#include "starling/run/run_environment.h"
#include "starling/spec/run_spec.h"
#include "starling/train/fit_options.h"

namespace starling {

// Returns the options of the loader of rank `rank` of `ranks` that divide each batch. The loader begins after
// `first_step` steps.
LoaderOptions loader_options(const RunSpec& spec, int rank, int ranks, int64_t first_step);

// Returns the model-parallel layers of a hybrid run and reports them to the sink. Returns none if
// train.hybrid is "none". Call it before anything else of the run computes.
std::vector<std::string> hybrid_layers_of(const RunSpec& spec, const SyncedModelFactory& factory,
                                          const Source& data, const RunEnvironment& environment);

// Trains as the spec says and returns the summary, complete on rank 0. Collective. If `trained` is not null,
// it receives the parameters and buffers at the end, by name and whole, on every rank. They are fp64 in a run
// in fp64, and fp32 otherwise. Every rank must then pass `trained`. Errors: ConfigError if the ranks have
// different data.
RunResult run_training(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
                       const RunEnvironment& environment, const FitOptions& options = {},
                       TensorMap* trained = nullptr);

// Returns the metrics of `starling train`: the accuracy for images, and none for text.
FitOptions zoo_options(const SourceInfo& data);

}  // namespace starling
