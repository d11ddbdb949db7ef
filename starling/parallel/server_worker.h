// ServerWorker is what the strategies with parameter servers have in common on a worker: a replica, the
// connection to the shards, and what happens after the loss of another worker.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <type_traits>
#include <vector>

#include "starling/base/clock.h"
#include "starling/parallel/replica/flat_replica.h"
#include "starling/parallel/strategy.h"
#include "starling/server/client.h"

namespace starling {

// What a ServerWorker needs besides its replica. The group and the clock must outlive it.
struct ServerWorkerParts {
  int worker = 0;  // this worker's number among all workers of the servers
  // The workers that average buffers and gather states. May be null.
  Group* workers = nullptr;
  // Whether other workers may be lost while this one continues.
  bool survives_losses = false;
  const Clock& clock;
};

// The base class. The derived class calls connect() in its constructor. Not thread-safe.
class ServerWorker : public Strategy, public Recoverable {
 public:
  // Tells the servers that this worker has finished. While an exception propagates it tells them nothing, and
  // they then count the worker as lost.
  ~ServerWorker() override;

  double forward_backward(const Batch& batch) override;
  Replica& evaluated() override { return replica_.replica(); }
  std::vector<uint64_t> bytes_from_servers() override;
  Recoverable* recoverable() override { return this; }
  // Returns the parameters and buffers of this worker.
  StrategyState own_state() override;
  // Returns the workers that the servers have reported as lost to this worker so far (server/client.h).
  std::set<int> lost_ranks() override;
  // Tells the servers that this worker has finished. Only destruction is allowed afterwards.
  void leave() final;
  // Returns the order of events on a shard (ServerOptions::record_events).
  std::vector<ServerTableEvent> events(int shard);
  // This worker's replica.
  const FlatReplica& replica() const { return replica_; }

 protected:
  ServerWorker(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
               const ServerWorkerParts& parts);

  // Connects to the shards, in the type of the replica. Errors: CommError if a server is missing after
  // rendezvous.server_timeout.
  void connect(Store& store, const ServerRendezvous& rendezvous, const Partitioning& partitioning,
               const ClientLayout& layout);

  // Calls `call` with the client and returns its result.
  template <typename F>
  auto with_client(const F& call) {
    return fp64_ ? call(*fp64_) : call(*fp32_);
  }
  // The functions below call the client's function of the same name with the memory of flat tensors. An
  // undefined tensor stands for no memory.
  void load(bool loads, const std::vector<at::Tensor>& states, int64_t updates);
  PullReport pull(const at::Tensor& into);
  void push(const at::Tensor& gradient, const PushNotes& notes);
  void snapshot(const at::Tensor& into);
  int64_t push_clock();

  // Whether the replica is in fp64.
  bool fp64() const { return fp64_master_; }
  // Whether no worker with a lower number is left.
  bool is_first();
  // Whether the collectives of the workers can be used: there is a group, and no worker is lost.
  bool workers_meet();
  // Makes running statistics equal to their mean over the workers. These are estimates: if a worker is lost
  // or dies meanwhile, each worker keeps its own. Does nothing without a group.
  void average_buffers_of_all();
  // Returns copies of the buffers.
  std::map<std::string, at::Tensor> copies_of_buffers();
  void load_buffers(const StrategyState& state);
  // Adds the times of the step to its report. begin: of update(). comm_before: push_s_ + pull_s_ then. sent:
  // all bytes that this worker has sent so far.
  void report_step(StepReport& report, Nanoseconds begin, double comm_before, uint64_t sent);

  const int worker_;
  Group* const workers_;
  const bool survives_losses_;
  const Clock& clock_;
  FlatReplica replica_;
  Step step_;
  PullReport last_pull_;
  int64_t met_at_ = 0;  // asynchronous: PullReport::stop_at of the last meeting of the workers
  double own_loss_ = 0;
  double push_s_ = 0, pull_s_ = 0;  // of the step
  uint64_t sent_before_ = 0;        // before the step

 private:
  const bool fp64_master_;
  std::unique_ptr<ServerClient<float>> fp32_;  // exactly one of fp32_ and fp64_ is set
  std::unique_ptr<ServerClient<double>> fp64_;
  double forward_backward_s_ = 0;
  bool left_ = false;
};

}  // namespace starling
