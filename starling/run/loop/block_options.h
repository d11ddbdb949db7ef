// The blocks of a user's model: those that the program names, or those that follow from its module.
#pragma once

#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/spec/run_spec.h"
#include "starling/train/fit_options.h"

namespace starling {

// Fills `made.blocks` if the options name blocks, or if the run cuts the model and the factory fills none.
// Errors: those of find_blocks().
void add_blocks(Model& made, const RunSpec& spec, const FitOptions& options);

// If the run cuts the model at blocks of add_blocks(), compares these blocks with the forward function on
// samples of `train`. Errors: those of check_blocks().
void check_added_blocks(const ModelFactory& module, const RunSpec& spec, const FitOptions& options,
                        const Source& train);

}  // namespace starling
