// What formulas predict for the model of a comparison: bytes by layer, and memory per rank with ZeRO beside
// measured memory.
#pragma once

#include <vector>

#include "starling/commands/compared_run.h"
#include "starling/report/comparison.h"

namespace starling {

// Sets comparison.layers and comparison.memory. comparison.runs[i] must be the record of runs[i].
// Errors: those of opening the data and of making the model.
void add_theory(Comparison& comparison, const Config& base, const std::vector<ComparedRun>& runs);

}  // namespace starling
