// The policy gradient of device placement (Mirhoseini et al., arXiv 1706.04972), trained by asynchronous
// workers.
//
// The policy π(P; θ) is a sequence-to-sequence network with attention. Each group of operations is a vector:
// an embedding of its kind, its times and bytes, and its row of the adjacency matrix. An LSTM encodes the
// groups in order. A second LSTM names one device per group. Its input is the encoded group and the embedding
// of the device that it named last, and attention over all encoded groups precedes the choice. The logits are
// C tanh(·).
//
// A worker samples K placements and simulates each. With the reward r = −sqrt(cost / reference) and the
// baseline b, an exponential moving average of the worker's mean rewards, it makes a step against the
// gradient
//
//   −1/K Σ_k (r_k − b) ∇ log π(P_k; θ)  −  entropy · ∇ H(π)
//
// The reference is the cost of the whole graph on the fastest device, which makes the reward free of units.
// The entropy term, which the paper does not have, keeps the policy from becoming certain too early.
//
// With several ranks, each rank is a worker, and a parameter server holds θ. A worker pushes its gradient and
// pulls θ without waiting for the others (staleness inf). A worker with its own baseline is a "controller" of
// the paper.
#pragma once

#include <cstdint>
#include <functional>

#include "starling/parallel/loop_state.h"
#include "starling/place/search.h"
#include "starling/run/run_environment.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Settings of train_policy().
struct PolicyOptions {
  uint64_t seed = 0;
  int64_t updates = 150;  // of each worker
  int64_t samples = 10;   // K, placements per update
  double lr = 5e-3;       // of Adam
  double decay = 0.8;     // of the baseline
  double entropy = 0.01;
  int64_t hidden = 32;  // units of the LSTMs
};

// What the workers have found.
struct PolicyResult {
  FoundPlacement best;         // of all samples of all workers; equal on all ranks
  FoundPlacement likely;       // the most likely placement of rank 0's policy at the end; equal on all ranks
  double first_reward = 0;     // mean over the samples of rank 0's first update
  double last_reward = 0;      // mean over those of the last update
  int64_t parameters = 0;      // elements of θ
  double bytes_exchanged = 0;  // between rank 0's worker and the servers; 0 with one rank
  bool interrupted = false;
};

// Throws ConfigError for numbers that are not positive.
void check_policy(const PolicyOptions& options);

// Returns the configuration by which the workers exchange: a parameter server with staleness inf, or nothing
// if there is one rank. All other keys of the exchange have their defaults. The process that starts the ranks
// must use it, so that it also starts the server.
RunSpec policy_spec(RunSpec spec);

// Trains the policy. Collective over the ranks. `spec` is one that policy_spec() has returned. `loop` is that
// of all policies of the process, and the server ends when it is destroyed. With one rank the result depends
// on the arguments only. With several ranks the workers do not wait for each other, so θ depends on their
// speeds. on_update is called on each rank after each update with the lowest cost so far; it may be empty.
PolicyResult train_policy(const StepSimulator& simulator, const PolicyOptions& options, const RunSpec& spec,
                          const RunEnvironment& environment, LoopState& loop,
                          const std::function<void(int64_t update, double lowest)>& on_update = {});

}  // namespace starling
