// The worker's side of the parameter server (server/table.h has the equations): parameters are pulled, a gradient is computed,
// the gradient is pushed; only the servers hold optimizer states and the master copy.
//
// Downpour SGD (Dean et al., NIPS 2012, algorithm 7.1) is the same with n_push and n_fetch apart, asynchronous, with AdaGrad on
// the servers:
//
//   if step mod n_fetch = 0: x ← pull()
//   a ← a + g(x);  x ← x − α g(x)  (only where n_fetch > 1: between two pulls the replica goes on by itself)
//   if step mod n_push = 0: push(a); a ← 0
//
// and with a model that is divided over the ranks of a group (pipeline/stage_model.h): each rank owns some parameters and
// pushes and pulls only these, so only the shards that hold them hear of it (server/client.h). A parameter that several ranks
// of a group hold is pushed and pulled by the first of them, which gives it to the others.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/parallel/flat_replica.h"
#include "starling/server/client.h"
#include "starling/server/options.h"

namespace starling {

// A parameter as the servers have it.
struct ServerKey {
  std::string name;
  std::vector<int64_t> sizes;
  int home = -1;  // which of the ranks of a group owns it (Partition::home), -1: one rank owns all
};

struct ParameterServerOptions {
  ServerOptions server;        // as the servers have it; server.workers = all workers
  FlatReplicaOptions replica;  // clip_norm: each group's own gradient, before it is pushed
  int64_t n_push = 1;          // steps whose gradients are added up for one push
  int64_t n_fetch = 1;         // steps between pulls
  // Where the replica is a part of a model: all parameters of the whole, the same on all workers. This rank owns those that
  // its replica has and replica.parts does not count elsewhere. Empty: the replica is whole.
  std::vector<ServerKey> keys;
  // Whether this rank's initial parameters, those that it owns, become the servers'. Exactly one worker a parameter.
  bool loads = false;
  // Other workers may be lost while this one goes on: the mean of the buffers in consensus() is left out where they are.
  bool survives_losses = false;
};

// ConfigError naming the option that cannot be.
void check_parameter_server_options(const ParameterServerOptions& options);

class ParameterServer final : public Strategy {
 public:
  // Meets the servers (CommError within meeting.server_timeout where one is not there). `workers`: the group of the workers with
  // the same part, which averages buffers (running statistics) in consensus() and collects the state of push codecs for
  // checkpoints, and nothing else; may be null where the model has none.
  // store, workers and clock outlive this.
  ParameterServer(const ModelFactory& factory, const ParameterServerOptions& options, Store& store,
                  const Meeting& meeting, int worker, Group* workers, const Clock& clock);
  // Says goodbye to the servers, except while an exception is under way: then they take the worker for lost.
  ~ParameterServer() override;

  // Pulls where it is due; waits only for the bound of staleness.
  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  // Pushes where it is due. Synchronous: pulls, too, so that it ends when the clock is complete and reports that clock's
  // mean loss; otherwise the loss is the mean of the workers' last ones that the servers knew at the last pull. `redo` where
  // the servers ask for it (ServerOptions::redo_after_loss).
  StepReport update() override;
  // Waits until the pushes of all workers are applied; all get the same parameters. Pushes what has been added up.
  void consensus() override;
  // On the lowest worker that is not lost everything, as the servers have it, when all workers have called it. On the others
  // that load, the buffers.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // server_fingerprint() of all shards, and this worker's bytes: bytes_per_step_formula (a step that pushes and pulls) and
  // bytes_exchanged, counted; push_message_bytes, pull_message_bytes (means of the bodies that travelled),
  // push_compression, pull_compression (|W| over these), residual_norm (of pushes, with error feedback). Not collective.
  std::map<std::string, double> fingerprint();
  Replica& evaluated() { return replica_.replica(); }
  // The workers that the servers have lost, as far as this one has heard (client.h); StepReport::lost is their number.
  const std::set<int>& lost();
  // The order of events on a shard (ServerOptions::record_events).
  std::vector<TableEvent> events(int shard);
  // To the servers, at the end. Only destruction is allowed after it.
  void leave();

 private:
  template <typename F>
  auto with_client(const F& call);
  void load(int64_t updates, bool with_states);
  void fetch();
  void push();
  void clip();
  void find_keys();
  using Sections = std::vector<std::vector<at::Tensor>>;  // parameters, then each state; by key
  Sections whole_snapshot(int64_t& updates);
  bool is_first();
  void average_buffers_of_all();
  // The state of a worker's push codec in a checkpoint: one tensor a worker, "push_codec@<worker>/<first parameter>".
  std::string push_state_name(int worker);
  void put_push_states(StrategyState& state);
  void take_push_state(const StrategyState& state);

  const ParameterServerOptions options_;
  const int worker_;
  Group* const workers_;
  const Clock& clock_;
  const std::vector<std::string> state_names_;
  FlatReplica replica_;
  struct Key {
    std::string name;
    std::vector<int64_t> sizes, strides;
    size_t offset = 0;  // in the replica's flat ranges, where it is owned
    bool owned = true;
    int home = -1;
  };
  std::vector<Key> keys_;
  std::unique_ptr<ServerClient<float>> fp32_;  // one of the two
  std::unique_ptr<ServerClient<double>> fp64_;
  at::Tensor added_up_;                    // with n_push > 1
  std::vector<at::Tensor> loaded_states_;  // between load_state() and the load
  Step step_;
  PullReport last_pull_;
  double own_loss_ = 0;
  int64_t samples_ = 0;  // of the gradient that is pushed next
  double forward_backward_s_ = 0;
  double comm_s_ = 0;
  uint64_t sent_before_ = 0;
  int64_t steps_ = 0;
  int64_t unpushed_ = 0;   // steps since the last push
  int64_t unfetched_ = 0;  // steps since the last pull
  bool fetched_ = false;
  bool left_ = false;
};

}  // namespace starling
