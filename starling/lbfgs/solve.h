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
#include <exception>
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
  // Set on some rank: the ranks write a checkpoint and end after the iteration. May be null.
  const std::atomic<bool>* stop = nullptr;
  // Receives the iteration of the checkpoint from which the run goes on, on rank 0. May be empty.
  std::function<void(int64_t)> on_resumed = {};
  // Receives the number of each evaluation that this rank has finished, on all ranks. May be empty.
  std::function<void(int64_t)> on_evaluation = {};
  // Receives each iteration, on rank 0. May be empty.
  std::function<void(const MinimizeStep&)> on_iteration = {};
};

// What a run reports. Members are set on rank 0 only, unless they say otherwise.
struct LbfgsResult {
  MinimizeEnd end = MinimizeEnd::kConverged;  // on all ranks
  // Rank 0 has a fault, which solve_logistic() throws there. On all other ranks; nothing else is set then.
  bool failed = false;
  // On all ranks: why this rank could not write the last checkpoint, or null. The weights are good. If the
  // run was stopped, rank 0 throws this fault.
  std::exception_ptr unsaved;
  MinimizeState state;        // with the objective, and the counts of iterations and evaluations
  int64_t resumed_from = -1;  // the iteration of the checkpoint; -1: none
  double seconds = 0;         // of the loop, without the start
  int64_t evaluations = 0;    // of this process, without those before a resumption
  ByteCounts bytes;           // sent by all ranks
  int64_t instructions = 0;
  int64_t requests = 0;  // for portions, by other ranks than rank 0
  PortionCounts portions;
  VectorSlice slice;            // of this rank, on all ranks
  std::vector<double> weights;  // this rank's slice of the weights, on all ranks
};

// Returns the number of elements that all vectors have.
int64_t lbfgs_elements(const SampleTable& table);
// Returns how `samples` samples are shared out among the ranks.
PortionRules portion_rules(const LbfgsOptions& options, int ranks, int64_t samples);

// Throws ConfigError if an option is out of range: ridge, tolerance, memory, portions, iterations.
void check_lbfgs(const LbfgsOptions& options);

// Minimizes. Collective.
// Errors: ConfigError, from check_lbfgs(). DataError if ranks have different samples. Error(kNumeric) if the
// objective is not finite, or if no step decreases it. Error(kCheckpoint). TimeoutError if an evaluation
// makes no progress. CommError. A fault of rank 0 alone is thrown there, and all other ranks return. If the
// folder of the checkpoints cannot be made or locked, all ranks throw an Error with the message of rank 0.
// Its code is kConfig if another run uses the folder. All ranks must pass equal options.
LbfgsResult solve_logistic(const LbfgsOptions& options, const LbfgsParts& parts);

}  // namespace starling
