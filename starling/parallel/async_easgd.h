// Elastic averaging SGD, the asynchronous form: each worker trains alone at its own speed. Every τ steps it
// exchanges with a common center c, which lies on the parameter servers.
//
//   if τ divides t_k:  d ← c − x_k,   x_k ← x_k + α d,   c ← c + α (x_k − c) = c − α d.
//   x_k ← x_k + (the update of worker k's optimizer from its gradient),   t_k ← t_k + 1.
//
// (Zhang, Choromanska, LeCun, "Deep learning with Elastic Averaging SGD", NIPS 2015, arXiv 1412.6651,
// algorithm 1.) The gradient and the force both begin at the x_k before the exchange. t_k counts the steps of
// worker k from 0. α is β/p for p workers at the start, τ is exchange.every, and β is exchange.elastic.
//
// With plain SGD this is algorithm 1. With momentum δ it is EAMSGD, algorithm 2:
//
//   v_k ← δ v_k − lr · g_k(x_k + δ v_k),   x_k ← x_k + v_k
//
// Nesterov's momentum of the update rule keeps y_k = x_k + δ v_k as the parameters (optim/update_rule.h). The
// force then acts on x_k = y_k − δ v_k, as in the paper. With classical momentum the gradient is that of x_k.
//
// The servers add α (x_k − c) by plain SGD. A push has the "gradient" d and the learning rate α. Every worker
// weight λ is 1. The servers keep no optimizer states. Between the read of a worker and its push, the pushes
// of other workers may change c. An exchange moves the center by exactly the negative of what it moves the
// worker, so without gradients c + Σ_k x_k stays constant.
//
// The agreed model is the center. Each worker keeps its own parameters and optimizer states. An exchange is a
// pull and a push: |W| down, |W| up, and 3 · 56 bytes per shard (server/client.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/parallel/server_worker.h"
#include "starling/server/server_options.h"

namespace starling {

// Settings of a worker.
struct AsyncEasgdOptions {
  FlatReplicaOptions replica;  // replica.parts must be empty: each worker holds a whole model
  int64_t every = 8;           // τ, at least 1
  double elastic = 0.9;        // β, above 0 and at most 1
  // Whether the initial parameters of this worker become the center. True for exactly one worker.
  bool loads = false;
  // Whether other workers may be lost while this one continues. After a loss, consensus() no longer averages
  // buffers, and a checkpoint holds the parameters of one worker only.
  bool survives_losses = false;
};

// The exchange "async-easgd", on a worker. The servers must have the options of make_center()
// (server/server_options.h). Not thread-safe.
class AsyncEasgd final : public ServerWorker {
 public:
  // Tells the servers the settings of this service (server/service_settings.h), and connects. Errors:
  // CommError if a server is missing after rendezvous.server_timeout. `rule` updates this worker's
  // parameters. `workers` is the group of all workers. This group averages buffers (running statistics) in
  // consensus() and collects the parameters of all workers for checkpoints. It may be null if the model has
  // no buffers; state() then holds the parameters of one worker only. The store, `workers` and the clock must
  // outlive this object.
  AsyncEasgd(const ModelFactory& factory, UpdateRule rule, const AsyncEasgdOptions& options, Store& store,
             const ServerRendezvous& rendezvous, int worker, Group* workers, const Clock& clock);
  // Sets the parameters to the center before the first step of a run that is not resumed.
  void begin_step(const Step& step) override;
  // Updates the parameters, and exchanges with the center if an exchange is due. Waits for the servers'
  // answer and for no other worker. The loss is that of this worker. A request to stop takes effect after an
  // exchange, which has the same number on all workers.
  StepReport update() override;
  // Shows the center on every worker until the next step. All workers must call it after equally many
  // exchanges. Running statistics become their mean over the workers.
  void consensus() override;
  // Returns the center as parameters. What each worker has of its own is named "<kind>@<worker>/<name>",
  // where the kind is x or a state of the update rule. Collective. The lowest worker that is not lost returns
  // the state, and any other worker returns an empty one.
  StrategyState state() override;
  // Takes the center and this worker's own parameters. Without the latter, as for a worker that was lost
  // before the checkpoint, the worker starts at the center with an optimizer of zeros.
  void load_state(const StrategyState& state) override;

  // Returns server_stats() of all shards and the statistics of this worker. Not collective. `exchanges` is
  // the number of its exchanges, and center_distance is ‖x_k − c‖ at the last one. bytes_exchanged is
  // counted. bytes_per_step_formula is that of an exchange, divided by τ.
  StrategyStats strategy_stats() override;

 private:
  void connect_to_center(Store& store, const ServerRendezvous& rendezvous);
  void pull_center(const at::Tensor& into);
  void exchange();
  bool stops_here();
  std::map<std::string, at::Tensor*> own_ranges();
  void put_own_ranges(bool first, StrategyState& state);

  const AsyncEasgdOptions options_;
  const double alpha_;
  const double lookahead_;  // δ if the parameters are y_k = x_k + δ v_k; otherwise 0
  at::Tensor gap_;          // d = c − x_k of the last exchange
  int64_t exchanges_ = 0;
  bool placed_ = false;  // whether the parameters come from the center or from a checkpoint
};

}  // namespace starling
