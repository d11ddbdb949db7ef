// Choices that are made by measurement (design decision 4): once, by rank 0, told to all ranks, recorded in the run's
// manifest, and taken from there by a resumed run.
#pragma once

#include <map>
#include <string>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/spec/run_spec.h"

namespace starling {

// "gemm": mkl | onednn; "layout": contiguous | channels-last; "cut", of pipelines: the block where each stage begins, and
// their number ("0 3 8").
using Choices = std::map<std::string, std::string>;

// Collective: what the spec leaves to "auto" is measured by rank 0 unless `earlier` (a resumed run's) has it.
// sample: a small batch for measuring: what a rank computes at once (measured_samples()).
Choices make_choices(const RunSpec& spec, const ModelFactory& factory, const Batch& sample,
                     const Choices& earlier, Group& group, const Clock& clock);

// A rank's share of a step; of a pipeline, a micro-batch.
int64_t measured_samples(const RunSpec& spec);

// Puts the choices into force in this process.
void apply_choices(const Choices& choices);

}  // namespace starling
