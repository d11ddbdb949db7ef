// Evaluates a model on a data set. Each rank computes a share of the samples.
#pragma once

#include <functional>

#include "starling/data/source.h"
#include "starling/parallel/replica/replica.h"
#include "starling/telemetry/event.h"
#include "starling/train/fit_options.h"
#include "starling/train/rank_gather.h"

namespace starling {

// Is called during an evaluation with the number of samples that this rank has evaluated and the number of
// its share. Returns false to break off the evaluation.
using GoesOn = std::function<bool(int64_t samples, int64_t of)>;

// Returns the loss and the metrics of `replica` on `source`. Collective. `batch` is the number of samples of
// one forward pass per rank. The loss is the mean over all samples, and over all tokens of text. A weighted
// loss is its sum over all samples divided by its weight. The result is complete on the rank where
// rank_gather.leads() is true, and on all ranks if rank_gather.all_receive() is. The leading rank also
// computes the shares of lost ranks. The module is in evaluation mode during the call and in training mode
// afterwards. Errors: c10::Error of the model, the loss or a metric, which says where it came from;
// ConfigError if the ranks have different numbers of metrics.
//
// `goes_on` is called after every batch. If it returns false on some rank, the result has -1 samples where it
// would be complete. Ranks that compute each sample together must not break off.
EvalDone evaluate(Replica& replica, const Source& source, int64_t batch, const std::vector<Metric>& metrics,
                  RankGather& rank_gather, int64_t step, const GoesOn& goes_on = {});

// Stores the value of a metric in `done`: in `accuracy` if the metric is called so and lies between 0 and 1,
// otherwise in `metrics`.
void put_metric(EvalDone& done, const std::string& name, double value);
// Returns what put_metric() stored, or NaN if it stored nothing.
double metric_of(const EvalDone& done, const std::string& name);

}  // namespace starling
