// Loss and accuracy of a model on a data set, the samples shared out among the ranks.
#pragma once

#include "starling/data/source.h"
#include "starling/parallel/replica.h"
#include "starling/telemetry/event.h"
#include "starling/train/tally.h"

namespace starling {

// Collective. batch: samples of one forward pass a rank. Loss is the mean over all samples (and tokens); accuracy is the
// share of right classes, -1 for text; both complete where tally.leads(), which also does the shares of lost ranks. The module
// is in evaluation mode meanwhile and in training mode afterwards.
EvalDone evaluate(Replica& replica, const Source& source, int64_t batch, Tally& tally, int64_t step);

}  // namespace starling
