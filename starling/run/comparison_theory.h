// What the formulas say about the model of a comparison: bytes by layer, and memory under ZeRO beside what was measured.
#pragma once

#include <vector>

#include "starling/report/comparison.h"
#include "starling/run/compared_run.h"

namespace starling {

// Fills comparison.layers and comparison.memory; comparison.runs are those of `runs`, in the same order. Errors: those of
// opening the data and making the model.
void add_theory(Comparison& comparison, const Config& base, const std::vector<ComparedRun>& runs);

}  // namespace starling
