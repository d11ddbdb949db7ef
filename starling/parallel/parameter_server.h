// ParameterServer is the worker's side of the parameter server. A worker pulls parameters, computes a
// gradient and pushes the gradient. Only the servers hold optimizer states and the master copy of the
// parameters (server/server_table.h has the equations).
//
// Downpour SGD (Dean et al., NIPS 2012, algorithm 7.1) is an asynchronous setting of this strategy. It uses
// AdaGrad on the servers, and separate n_push and n_fetch:
//
//   if step mod n_fetch = 0: x ← pull()
//   a ← a + g(x);  if n_fetch > 1: x ← x − α g(x)
//   if step mod n_push = 0: push(a); a ← 0
//
// If n_fetch > 1, the replica trains by itself between two pulls.
//
// In Downpour SGD, the ranks of a group may share a model (pipeline/stage_model.h). Each rank owns some of
// the parameters, and pushes and pulls only these. So it talks only to the server shards that hold its
// parameters (server/client.h). If several ranks of a group hold a parameter, the first of them pushes and
// pulls the parameter and sends it to every other holder.
//
// The layers of a replica may be sharded over ranks (tensor_parallel.h). Each rank then pushes and pulls its
// slices. The first of these ranks pushes and pulls the parameters that all of them hold whole, and sends
// them to the other ranks after each pull. The servers answer the ranks at different times. So the slices of
// one pull may be of different updates, as may the shards of a whole model.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/parallel/server_team.h"
#include "starling/parallel/server_worker.h"
#include "starling/server/server_options.h"

namespace starling {

// A parameter as the servers store it.
struct ServerKey {
  std::string name;
  std::vector<int64_t> sizes;
  int home = -1;  // the rank of a group that owns the parameter; -1: one rank owns all
  // The parameter of the replica of which this key is the slice of rank `home`. Empty: the key is a whole
  // parameter.
  std::string slice_of = {};
};

// Settings of a worker.
struct ParameterServerOptions {
  ServerOptions server;        // equal to the servers' options; server.workers counts all workers
  FlatReplicaOptions replica;  // clip_norm applies to each group's own gradient before the push
  int64_t n_push = 1;          // steps whose gradients are summed for one push
  int64_t n_fetch = 1;         // steps between pulls
  // If the replica is a part of a model: all parameters of the whole model, equal on all workers. This rank
  // owns those that its replica has and that replica.parts does not count elsewhere. Empty if the replica is
  // whole, or if its layers are sharded over replica.parts.slices; the keys are then those of all slices.
  std::vector<ServerKey> keys;
  // The ranks of which rank 0 pushes and pulls for all (server_team.h). Null: each rank does so for itself.
  // If set, the servers are synchronous, and `keys` is empty. It must outlive the strategy.
  Group* team = nullptr;
  // Whether the initial parameters that this rank owns become those of the servers. Exactly one worker must
  // load each parameter.
  bool loads = false;
  // Whether other workers may be lost while this one continues. After a loss, consensus() no longer averages
  // buffers.
  bool survives_losses = false;
  // Whether the program may make further strategies with servers in this run.
  bool more_services = false;
};

// Throws a ConfigError that names the invalid option.
void check_parameter_server_options(const ParameterServerOptions& options);

// The exchange "parameter-server", on a worker. Not thread-safe.
//
// An own optimizer (parallel/replica/own_optimizer.h) gives the servers their update rule and the learning
// rate of each push. It makes no update itself.
class ParameterServer final : public ServerWorker, public OwnLoop {
 public:
  // Tells the servers the settings of this service (server/service_settings.h), and connects. Collective over
  // replica.parts.slices, as are all pulls. Errors:
  // CommError if a server is missing after rendezvous.server_timeout; ConfigError for an own optimizer whose
  // updates servers cannot make. `workers` is the group of the workers that hold the same part of the model.
  // This group averages buffers (running statistics) in consensus() and collects the states of push codecs
  // for checkpoints. It may be null if the model has no buffers and pushes have no codec with a state. The
  // store, `workers` and the clock must outlive this object.
  ParameterServer(const ModelFactory& factory, const ParameterServerOptions& options, Store& store,
                  const ServerRendezvous& rendezvous, int worker, Group* workers, const Clock& clock);
  // Pulls the parameters if a pull is due. Waits only for the bound of staleness.
  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  // Pushes the gradient if a push is due. A synchronous worker then also pulls, so that update() ends when
  // the step is complete on all workers. It reports the mean loss of that step, and sets `redo` if the
  // servers ask for a repetition (ServerOptions::redo_after_loss). An asynchronous worker reports the mean of
  // the latest losses of all workers that the servers knew at the last pull. In its first n_fetch steps, and
  // in a step of a synchronous worker without a push, the loss is that of this worker.
  StepReport update() override;
  // Pushes the summed gradients and waits until the pushes of all workers are applied. All workers then have
  // equal parameters.
  void consensus() override;
  // Collective over the workers. The lowest worker that is not lost returns the whole state of the servers.
  // If layers are sharded, each rank of the replica that loads returns the state of its part.
  // Any other worker returns the state of its push codec, if any, and its buffers if options.loads is set.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // Returns server_stats() of all shards and the bytes of this worker. Not collective. bytes_per_step_formula
  // is for a step that pushes and pulls. bytes_exchanged counts the bytes between this worker and the
  // servers, without those between the ranks of a team. push_message_bytes and pull_message_bytes are means
  // over the message bodies. push_compression and pull_compression are |W| divided by those means.
  // cached_reads counts the reads that this worker answered from its cache. residual_norm is the norm of the
  // push codec's error feedback, if any.
  StrategyStats strategy_stats() override;
  void take_gradients(const OwnStep& step) override;
  // Does nothing: the mean of the gradients is known to the servers only.
  void synchronize() override {}
  OwnLoop* own_loop() override { return options_.replica.own_gradients ? this : nullptr; }

 private:
  // A parameter as this worker pushes and pulls it.
  struct Key {
    std::string parameter;  // its name in a state
    std::vector<int64_t> sizes, strides;
    size_t offset = 0;    // in the replica's flat ranges, if this rank holds the parameter
    bool owned = true;    // by this rank
    bool held = true;     // by this rank; all ranks over which layers are sharded hold the whole parameters
    bool copied = false;  // by the first of these ranks to the others
    int home = -1;        // as ServerKey::home
  };

  void take_rule();
  void announce(Store& store, const ServerRendezvous& rendezvous, const Partitioning& partitioning);
  void fetch();
  void push_gradient();
  bool stops_here();
  uint64_t sent();
  void clip();
  void find_keys();
  // The ranks over which layers are sharded, or null.
  Group* slices() const;
  std::vector<ServerKey> keys_of_slices();
  void share_copies();
  // The parameters, then each optimizer state; each section is indexed by key. Keys that this rank does not
  // save have undefined tensors.
  using Sections = std::vector<std::vector<at::Tensor>>;
  bool saves(const Key& key) const;
  Sections whole_snapshot(int64_t& updates);
  // The name of a worker's push codec state in a checkpoint: "push_codec@<worker>/<first parameter>".
  std::string push_state_name(int worker);
  void put_push_states(StrategyState& state);
  void take_push_state(const StrategyState& state);

  ParameterServerOptions options_;
  const ServerTeam team_;
  std::vector<std::string> state_names_;
  TorchSettings torch_;  // of an own optimizer that is no update rule
  std::vector<Key> keys_;
  at::Tensor added_up_;  // the summed gradients, if n_push > 1
  double weight_ = 0;    // of the next pushed gradient: its samples, or the weight of a weighted loss
  int64_t steps_ = 0;
  int64_t unpushed_ = 0;   // steps since the last push
  int64_t unfetched_ = 0;  // steps since the last pull
  bool fetched_ = false;
};

}  // namespace starling
