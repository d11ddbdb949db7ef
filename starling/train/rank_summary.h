// A RankSummary is what one rank contributes to the summary of a run. The functions add the contributions up.
#pragma once

#include <optional>
#include <vector>

#include "starling/telemetry/event.h"
#include "starling/train/fit_options.h"

namespace starling {

struct RankSummary {
  // Bytes that the rank has sent in the whole run.
  double bytes_sent = 0;
  // The largest resident memory, in MB.
  double peak_rss_mb = 0;
  // Bytes that the rank has sent between the start and the end of steps.
  double step_bytes = 0;
  // `test_loss` is the loss of the last evaluation, over the test samples whose results the rank has
  // received. `test_samples` is the number of these samples. `test_weight` is the weight of the loss.
  double test_loss = 0, test_samples = 0, test_weight = 0;
  // As in StepDone, in s, of the whole run.
  double compute_s = 0, exposed_comm_s = 0, data_wait_s = 0;
  // The bytes that each server has sent to the rank. Servers are no ranks, so their workers report them.
  std::vector<double> from_servers;
  // The metrics of the last evaluation, in the order of FitOptions::metrics(), and their weights.
  std::vector<double> metrics, metric_weights;

  // Returns all numbers, in the order that of() expects.
  std::vector<double> numbers() const;
  // Returns the summary with these numbers(). Throws std::out_of_range for another length.
  static RankSummary of(const std::vector<double>& numbers);
};

// The summaries of all ranks, by rank. A lost rank has none.
using RankSummaries = std::vector<std::optional<RankSummary>>;

// Puts the bytes and the memory of all ranks into `result`. The statistic step_bytes is what all ranks have
// sent in steps, without evaluations and checkpoints, and all that servers have sent to them. bytes_balance
// is the largest number of bytes of a rank or server divided by the mean. It is missing if no bytes were
// sent.
void add_up_bytes(const RankSummaries& all, RunResult& result);

// Puts the times of the ranks that are left into `result`. Call it after result.lost_ranks is complete.
// `ranks` is the number of ranks at the start of the run. Fewer summaries mean that the remaining ranks were
// renumbered in order.
void list_rank_times(const RankSummaries& all, int64_t ranks, RunResult& result);

// Returns the loss, the accuracy and the metrics over the samples of the ranks that are left. Sets no other
// field. The loss is 0 without samples. Each summary must have as many metrics and weights as `metrics`.
EvalDone evaluation_of(const RankSummaries& all, const std::vector<Metric>& metrics);

}  // namespace starling
