// Ridge logistic regression by Sandblaster L-BFGS (Dean et al., "Large scale distributed deep networks", NIPS
// 2012, section 4.2). docs/explanation/sandblaster.md describes it.
//
// Every rank owns a slice of all vectors (vector_shard.h), as a server shard of the paper does. Rank 0 is
// also the coordinator. It executes the loop (minimize.h), sends instructions and adds scalars. Weights and
// gradients go from rank to rank and never pass the coordinator.
//
// Each rank has two threads. The calling thread executes instructions for the rank's slice. The other thread
// computes portions of an evaluation, which rank 0 hands out (portions.h). So a rank that is late with a
// portion still executes instructions.
//
// Sums are added in the order of portions and of ranks. The result is a function of the data, the options and
// the number of ranks. It does not depend on which rank computes a portion, nor on backup copies.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/lbfgs/messages.h"
#include "starling/lbfgs/minimize.h"
#include "starling/lbfgs/portions.h"
#include "starling/lbfgs/samples.h"
#include "starling/lbfgs/vector_shard.h"
#include "starling/spec/emulation.h"

namespace starling {

struct LbfgsOptions {
  MinimizeOptions minimize;
  double ridge = 1e-3;  // λ, at least 0
  int portions_per_rank = 32;
  bool backups = true;
  bool equal_portions = false;  // one portion per rank (PortionRules::equal)
  // compute=: the time that an equal share of the samples takes. slow-rank= and jitter= multiply the time of
  // a portion. A jitter hits a rank for a whole evaluation.
  Emulation emulation;
  uint64_t seed = 0;              // of the jitter
  std::string checkpoint;         // folder of the checkpoint; empty: none
  int64_t checkpoint_every = 10;  // iterations
};

// The environment of a rank's work. All references must outlive the call.
struct LbfgsParts {
  Group& group;
  const SampleTable& samples;  // equal on all ranks, after make_binary()
  const Clock& clock;
  std::chrono::milliseconds timeout{60'000};  // the longest time without progress in an evaluation
  const std::atomic<bool>* stop = nullptr;    // set: rank 0 writes a checkpoint and ends; may be null
  // Receives each iteration, on rank 0. May be empty.
  std::function<void(const MinimizeStep&)> on_iteration = {};
};

// What a run reports. All but `slice` and `weights` are set on rank 0 only.
struct LbfgsResult {
  MinimizeEnd end = MinimizeEnd::kConverged;
  MinimizeState state;        // with the objective, and the counts of iterations and evaluations
  int64_t resumed_from = -1;  // the iteration of the checkpoint; -1: none
  double seconds = 0;         // of the loop, without the start
  int64_t evaluations = 0;    // of this process, without those before a resumption
  ByteCounts bytes;           // sent by all ranks
  int64_t instructions = 0;
  int64_t requests = 0;  // for portions, by other ranks than rank 0
  PortionCounts portions;
  VectorSlice slice;            // of this rank
  std::vector<double> weights;  // this rank's slice of the weights
};

// Returns the number of elements that all vectors have.
int64_t lbfgs_elements(const SampleTable& table);

// Throws ConfigError if an option is out of range: ridge, tolerance, memory, portions, iterations.
void check_lbfgs(const LbfgsOptions& options);

// Minimizes. Collective.
// Errors: ConfigError, from check_lbfgs(). DataError if ranks have different samples. Error(kNumeric) if the
// objective is not finite. Error(kCheckpoint). TimeoutError if an evaluation makes no progress. CommError.
LbfgsResult solve_logistic(const LbfgsOptions& options, const LbfgsParts& parts);

}  // namespace starling
