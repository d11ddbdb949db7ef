// Choices that Starling makes when a run starts (design decision 4). By default they do not depend on a
// measurement. The exception is the cut of a pipeline that encodes nothing and draws no random numbers of
// libtorch's. This cut does not change what is learned. Rank 0 makes the choices once and sends them to all
// ranks. Checkpoints record them, and a resumed run takes them from its checkpoint.
#pragma once

#include <map>
#include <string>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/spec/run_spec.h"

namespace starling {

// The choices by name. "gemm" is mkl or onednn, and "layout" is contiguous or channels-last. "cut", for
// pipelines, lists the block where each stage begins and the number of blocks ("0 3 8"). "share", under
// data.share = "auto", lists the samples of each rank in a step ("43,21"). It is made after the first steps
// (share_measurement.h).
using Choices = std::map<std::string, std::string>;

// Makes the choices that the spec leaves to "auto", unless `earlier` (of a resumed run) holds them. Rank 0
// measures under train.tune, and for the cut of a pipeline as described above. `sample` is a small batch for
// measuring: the samples that a rank computes at once (measured_samples()). Collective.
Choices make_choices(const RunSpec& spec, const ModelFactory& factory, const Batch& sample,
                     const Choices& earlier, Group& group, const Clock& clock);

// Returns the number of samples that a rank computes at once. These samples are one of the train.accumulate
// parts of its share of a step, or a micro-batch in a pipeline.
int64_t measured_samples(const RunSpec& spec);

// Returns the first `count` samples of a source, or all of them if there are fewer.
Batch first_samples(const Source& source, int64_t count);

// Applies the choices in this process.
void apply_choices(const Choices& choices);

}  // namespace starling
