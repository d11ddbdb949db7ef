// ServerOptions says what a parameter server does.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "starling/codec/codec_spec.h"
#include "starling/server/partition_rule.h"
#include "starling/spec/run_spec.h"

namespace starling {

// The options of one server shard. All shards of a job have equal options.
struct ServerOptions {
  OptimizerSpec optimizer;       // the update rule that the server applies
  PartitionRuleMaker make_rule;  // makes the rule that replaces `optimizer`; empty: `optimizer` is used
  int workers = 1;
  // The bound s of the stale-synchronous model (Ho et al. 2013). 0: synchronous. No value: asynchronous,
  // without a bound.
  std::optional<int64_t> staleness = 0;
  // Synchronous only (Chen et al. 2016): the number of slowest workers whose gradients each clock drops. A
  // clock is complete when the gradients of `workers - backup` workers have arrived.
  int backup = 0;
  // Synchronous only. True: a clock's gradients are added in the order of the workers, so that equal runs
  // give equal bits, which are those of all-reduce. This needs memory for one gradient per worker. False:
  // the gradients are added in the order of arrival, with memory for one gradient.
  bool fixed_order = true;
  // Synchronous only, without backup workers, without a codec of pushes, and with a single shard, because
  // several shards would decide separately. If a worker is lost before its gradient of the open clock has
  // arrived, the server discards the gradients of that clock. All remaining workers are told to repeat the
  // clock on batches that are divided among them. False: the clock's mean is over the gradients that have
  // arrived.
  bool redo_after_loss = false;
  // Not synchronous only: the step size of a push of worker w is lr · λ_w. Empty: λ = 1 / (number of workers
  // that are not lost), so that one push of every worker amounts to one synchronous step.
  std::vector<double> lambda;
  // Not synchronous only: divides the step size of each partition by 1 + τ. τ is the number of updates that
  // other workers have made to the partition since the worker's last read.
  bool weight_by_staleness = false;
  // Asynchronous only: the warm start of Dean et al. (2012). The first `warm_workers` workers make one
  // replica and begin at once. The reads of any other worker are not answered until each of its partitions
  // has `warm_updates` updates. 0: all workers begin at once.
  int64_t warm_updates = 0;
  int warm_workers = 1;
  // The codecs of the gradients that workers push and of the weights that servers send. A codec other than
  // none requires fp32. Loads and snapshots are exact.
  CodecSpec push_codec;
  CodecSpec pull_codec;
  // Whether each worker pulls after each of its pushes. If not, the workers are told of the first request to
  // meet (PushNotes::stop) only, and of no later one.
  bool pulls_every_push = true;
  bool record_events = false;  // for tests that replay a run

  // Returns whether the staleness is 0.
  bool synchronous() const { return staleness == 0; }
  // Returns whether a worker may ask all workers to meet again after they have met.
  bool stops_again() const { return pulls_every_push && backup == 0; }
};

// Returns the options that the configuration gives.
ServerOptions server_options(const RunSpec& spec);

// Makes the servers hold the center variable of elastic averaging: a push with the learning rate r adds −r
// times its values, at once. So the servers keep no optimizer states, and every worker weight λ is 1.
// `options` must have the number of workers.
void make_center(ServerOptions& options);

// Throws ConfigError that names the invalid option and the allowed values.
void check_server_options(const ServerOptions& options);

}  // namespace starling
