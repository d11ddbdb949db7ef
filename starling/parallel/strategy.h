// Strategy: how the replicas of a run compute and agree. The trainer owns the loop (train/trainer.h):
//
//   for each step:  strategy.begin_step(step);                 // fetch what the step needs
//                   loss = strategy.forward_backward(batch);   // this rank's share of the global batch
//                   strategy.update();                         // exchange and optimizer
//   now and then:   strategy.consensus();                      // before evaluation and saving
//
// docs/design/strategy.md shows that all-reduce, ADMM, stale-synchronous, gossip, ZeRO-3 and 1F1B fit these six methods.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "starling/data/source.h"

namespace starling {

// What one step is: its number (1-based: the count of updates once it is done), its learning rate, and whether it should
// be the last.
struct Step {
  int64_t index = 0;
  double lr = 0;
  bool stop_requested = false;  // on this rank (SIGTERM)
};

struct StepReport {
  double loss = 0;            // mean over the samples of all ranks
  double compute_s = 0;       // forward, backward and optimizer arithmetic of this rank
  double exposed_comm_s = 0;  // waiting for peers, or moving bytes while nothing was computed
  int slowest_rank = -1;      // the last rank to arrive, -1 when alone
  uint64_t bytes_sent = 0;    // by this rank: into a socket, or in a window for peers who read them there
  bool stop = false;          // some rank asked to stop: all ranks see it after the same step
  int lost = 0;               // ranks that this strategy goes on without (server modes)
  bool redo = false;          // one was lost in this step, and nothing was updated: make it again without it
};

// What a checkpoint keeps of a strategy: fp32 or fp64 master parameters, buffers, and optimizer states, each by its
// global name ("fc1.weight", "momentum/fc1.weight").
struct StrategyState {
  std::map<std::string, at::Tensor> parameters;
  std::map<std::string, at::Tensor> buffers;
  std::map<std::string, at::Tensor> optimizer;
  int64_t step = 0;
};

// Not thread-safe: one thread drives it. Every rank calls the same methods in the same order.
// Errors: CommError and TimeoutError from peers; Error(kNumeric) for a loss that is not finite.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual void begin_step(const Step& step) = 0;
  // Gradients of the mean loss of `batch`, this rank's samples of the step. Returns that loss.
  virtual double forward_backward(const Batch& batch) = 0;
  virtual StepReport update() = 0;
  // Brings the model that is evaluated and saved into place on every rank (same parameters and buffers).
  virtual void consensus() = 0;
  // A snapshot (own memory) of the state after the last update. Complete on rank 0; others may return an empty one.
  virtual StrategyState state() = 0;
  // Takes over a snapshot, equal on all ranks. Errors: Error(kCheckpoint) naming the first tensor that does not fit.
  virtual void load_state(const StrategyState& state) = 0;
};

}  // namespace starling
