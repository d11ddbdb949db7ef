// What a parameter server does, as values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "starling/codec/codec_spec.h"
#include "starling/spec/run_spec.h"

namespace starling {

struct ServerOptions {
  OptimizerSpec optimizer;  // the update rule that the server applies
  int workers = 1;
  // s of the stale-synchronous model (Ho et al. 2013); 0: synchronous; nothing: asynchronous, without a bound.
  std::optional<int64_t> staleness = 0;
  // Synchronous only (Chen et al. 2016): a clock is complete with the gradients of the first workers - backup; later ones
  // are dropped.
  int backup = 0;
  // Synchronous only: a clock's gradients are added in the order of the workers, so that equal runs give equal bits (and
  // the bits of all-reduce). Otherwise in the order of their arrival, with memory for one gradient instead of one a worker.
  bool fixed_order = true;
  // Synchronous, without backup workers, of a single shard (shards would decide apart): when a worker is lost before its
  // gradient of the open clock has come, those of the others are put aside, and all who are left are told to make the clock
  // again, on batches that are shared out among them. Otherwise the clock's mean is over what has come.
  bool redo_after_loss = false;
  // Otherwise: the step size of worker w's pushes is lr · λ_w. Empty: 1 / (workers not lost) each, so that a push of every worker
  // amounts to one synchronous step.
  std::vector<double> lambda;
  // … and divided by 1 + τ, τ = the updates that others (and the worker) have made since the worker's last read.
  bool weight_by_staleness = false;
  // On the gradients that workers push, and on the weights that servers send. Where they are not none: fp32 only. Loads and
  // snapshots are exact.
  CodecSpec push_codec;
  CodecSpec pull_codec;
  bool record_events = false;  // for tests that replay a run

  bool synchronous() const { return staleness == 0; }
};

// ConfigError naming the option that cannot be, and what could.
void check_server_options(const ServerOptions& options);

}  // namespace starling
