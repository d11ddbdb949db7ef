// Strategy defines how the replicas of a run compute and agree. The trainer owns the loop (train/trainer.h):
//
//   for each step:  strategy.begin_step(step);                 // fetch what the step needs
//                   loss = strategy.forward_backward(batch);   // this rank's share of the global batch
//                   strategy.update();                         // exchange and optimizer
//   occasionally:   strategy.consensus();                      // before evaluation and saving
//
// evaluated() and strategy_stats() tell the trainer what to evaluate and report. Three abilities are
// optional: Recoverable (other ranks can continue after a loss), Traced (the timeline of a pipeline) and
// OwnLoop (a user's own loop computes the gradients).
//
// docs/design/strategy.md shows that all-reduce, ADMM, stale-synchronous, gossip, ZeRO-3 and 1F1B fit this
// interface.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "starling/data/source.h"
#include "starling/parallel/replica/replica.h"

namespace starling {

// The step that a strategy performs.
struct Step {
  int64_t index = 0;            // from 1, so that it equals the number of updates after the step
  double lr = 0;                // learning rate of the step
  bool stop_requested = false;  // this rank asks all ranks to meet after a step, to end the run or to save it
  double lr_factor = 1;  // the factor by which the rates of an own optimizer are multiplied in this step
};

// What a rank exchanges, or waits for, while it computes nothing.
enum class ExchangePhase {
  kGradients,    // gradients of other ranks, and pushes to servers
  kParameters,   // parameters of other ranks or of servers
  kActivations,  // activations and their gradients, between the parts of a sharded model
  kAgreement,    // the loss of all ranks, and whether a rank asks all ranks to meet
};
// The names of the phases in the events, in the order of ExchangePhase.
constexpr std::array<const char*, 4> kExchangePhases = {"gradients", "parameters", "activations",
                                                        "agreement"};

// What a rank reports of a step.
struct StepReport {
  double loss = 0;            // mean over the samples of all ranks
  double compute_s = 0;       // forward, backward and optimizer arithmetic of this rank
  double exposed_comm_s = 0;  // time spent waiting for peers or moving bytes without computing
  // The parts of exposed_comm_s, by ExchangePhase. Their sum is smaller if a strategy does not know the phase
  // of some time.
  std::array<double, kExchangePhases.size()> phase_s = {};
  int slowest_rank = -1;    // the rank of the job that arrived last; -1 if this rank is alone, or if unknown
  uint64_t bytes_sent = 0;  // by this rank, beyond what the run's group counts (TrafficCount)
  // Some rank asked all ranks to meet. All ranks see this after the same step, which may be a few steps after
  // the request. They then agree on what was asked for, and may go on.
  bool stop = false;
  int lost = 0;       // number of ranks that this strategy continues without (server modes)
  bool redo = false;  // a rank was lost and nothing was updated: repeat the step without that rank

  // Adds exposed communication of one phase.
  void expose(ExchangePhase phase, double seconds) {
    exposed_comm_s += seconds;
    phase_s[static_cast<size_t>(phase)] += seconds;
  }
};

// What a checkpoint keeps of a strategy: fp32 or fp64 master parameters, buffers and optimizer states. Each
// tensor has its global name ("fc1.weight", "momentum/fc1.weight").
struct StrategyState {
  std::map<std::string, at::Tensor> parameters;  // by name
  std::map<std::string, at::Tensor> buffers;     // by name
  std::map<std::string, at::Tensor> optimizer;   // by "<state>/<name>"
  int64_t step = 0;                              // number of updates so far
};

// What a strategy reports about itself at the end of a run, by name. Tests compare these values with theory.
using StrategyStats = std::map<std::string, double>;

// The ability of a strategy to lose ranks. A strategy that has it returns itself from
// Strategy::recoverable().
class Recoverable {
 public:
  virtual ~Recoverable() = default;
  // Returns the complete state of this rank without communication, also after a step that a CommError
  // interrupted. Ranks may differ by one step. No rank holds a partial update.
  virtual StrategyState own_state() = 0;
  // Returns the ranks that this rank knows to be lost while the strategy continues without them (servers).
  virtual std::set<int> lost_ranks() { return {}; }
  // Tells the servers that this rank has finished. Only destruction is allowed afterwards.
  virtual void leave() {}
};

class Traced;

// What a user's own loop knows of a step when its gradients are computed.
struct OwnStep {
  double lr = 0;  // learning rate of the update
  // Of this rank's gradient in the mean over the ranks; 1 if all have equally many samples.
  double weight = 1;
  // Makes this rank's gradient that of a mean, if it is that of a sum.
  double scale = 1;
};

// The ability of a strategy to train on gradients that a user's own loop computes
// (run/loop/distributed_optimizer.h). In place of forward_backward() it takes the gradients of the replica:
//
//   strategy.begin_step(step);  loss.backward();  own.take_gradients(…);  strategy.update();
class OwnLoop {
 public:
  virtual ~OwnLoop() = default;
  // Takes the gradients (.grad) of the replica's parameters as those of the step.
  virtual void take_gradients(const OwnStep& step) = 0;
  // Exchanges the gradients if the strategy exchanges gradients: each .grad then shows the mean over the
  // ranks, and update() does not exchange them again. Collective. Call it after take_gradients(), once at
  // most.
  virtual void synchronize() = 0;
};

// A parallel training algorithm on one rank. Every rank calls the same methods in the same order. Not
// thread-safe: one thread must make all calls. Errors: CommError and TimeoutError from peers; Error(kNumeric)
// for a loss that is not finite.
class Strategy {
 public:
  virtual ~Strategy() = default;
  // Starts a step: fetches what the step needs.
  virtual void begin_step(const Step& step) = 0;
  // Computes the gradients of the mean loss of `batch`, which holds this rank's samples of the step. Returns
  // that loss.
  virtual double forward_backward(const Batch& batch) = 0;
  // Exchanges with the other ranks and updates the parameters.
  virtual StepReport update() = 0;
  // Puts the model that is evaluated and saved into place, with equal parameters and buffers on every rank.
  virtual void consensus() = 0;
  // Puts the averaged weights (optimizer.ema_decay) into evaluated(), until the next begin_step() or
  // consensus(). Call it after consensus(). Buffers stay those of the trained model. Does nothing if the
  // strategy keeps no averaged weights. Collective.
  virtual void show_average() {}
  // Returns a snapshot of the state after the last update. The snapshot has its own memory. It is complete on
  // rank 0; other ranks may return an empty one.
  virtual StrategyState state() = 0;
  // Loads a snapshot, which must be equal on all ranks. Errors: Error(kCheckpoint) naming the first tensor
  // that does not fit.
  virtual void load_state(const StrategyState& state) = 0;

  // Returns the model that evaluation and saving use after consensus().
  virtual Replica& evaluated() = 0;
  // Returns the number of parameters of the whole model, even if evaluated() holds a part of the model.
  virtual int64_t whole_parameters() { return parameter_count(evaluated()); }
  // Returns the strategy statistics. Collective.
  virtual StrategyStats strategy_stats() { return {}; }
  // Returns how many bytes each server has sent to this rank so far, by server. Empty without servers.
  virtual std::vector<uint64_t> bytes_from_servers() { return {}; }

  // Returns this strategy's optional ability, or null if the strategy does not have it.
  virtual Recoverable* recoverable() { return nullptr; }
  // Returns this strategy's optional ability, or null if the strategy does not have it.
  virtual Traced* traced() { return nullptr; }
  // Returns this strategy's optional ability, or null if the strategy does not have it.
  virtual OwnLoop* own_loop() { return nullptr; }
};

}  // namespace starling
