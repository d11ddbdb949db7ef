// ServerClient: a worker's access to the shards of the parameter server. Gathers what belongs to a shard from flat memory,
// sends it, and puts what comes back into place.
//
//   ServerClient<float> client(store, meeting, worker, partitioning, layout);
//   client.load(parameters, {}, 0);                // one worker for each parameter; the others: client.expect_load()
//   for each step: client.pull(parameters);  …;  client.push(gradients, {.lr = lr, .loss = loss});
//   client.goodbye();
//
// Bytes of a step with push and pull, heads included, summed over the shards on which this worker owns something:
// step_bytes() = 2 · |W| · sizeof(T) + 3 · 56 a shard; with codecs their encoded_bytes() (the most, where these vary). Nothing
// goes to a shard on which it owns nothing.
//
// One thread at a time. Errors: CommError (TimeoutError) naming the server, its rank, and what was asked for; a server that is
// dead is known within 5 s of the next pull.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "starling/server/meeting.h"
#include "starling/server/partition.h"
#include "starling/server/table.h"
#include "starling/server/value_coder.h"

namespace starling {

// Where this worker has which parameters.
struct ClientLayout {
  std::vector<size_t> offset;  // of each parameter in flat memory, in elements
  std::vector<bool> owned;     // by parameter; empty: all. The others are neither pushed nor pulled.
  // The rest as the servers have it (ServerOptions).
  CodecSpec push_codec;
  CodecSpec pull_codec;
  std::vector<TensorShape> shapes;  // of each parameter, for codecs that see matrices; empty: vectors
};

struct PullReport {
  double loss = 0;        // mean over the workers, of their last pushes
  bool stop = false;      // some worker wished to stop
  int64_t staleness = 0;  // the largest of the shards'
  int64_t updates = 0;    // snapshots: made so far
  bool redo = false;  // pulls: the update of the last push was not made; it is to be pushed again (table.h)
};

struct MessageCount {
  uint64_t bytes = 0;
  uint64_t messages = 0;
  double mean() const {
    return messages > 0 ? static_cast<double>(bytes) / static_cast<double>(messages) : 0;
  }
};

template <typename T>
class ServerClient {
 public:
  using Value = T;

  // Meets all servers. The store must stay until the client has gone.
  ServerClient(Store& store, const Meeting& meeting, int worker, Partitioning partitioning,
               ClientLayout layout);
  ~ServerClient();

  // Sets the owned parameters on the servers, and the optimizer's states (none: zeros), that `updates` updates have made.
  void load(const T* parameters, const std::vector<const T*>& states, int64_t updates);
  // Another worker loads: the next pull waits until it has.
  void expect_load() { ++loads_; }

  void push(const T* gradients, const PushNotes& notes);
  PullReport pull(T* parameters);

  // Collective: a state that is equal for all workers (table.h). `parameters` null: only takes part.
  PullReport snapshot(T* parameters);
  // The same for one worker that takes everything, owned or not. section: 0 the parameters, k the k-th state.
  using Visit = std::function<void(int section, const Partition& partition, const T* values)>;
  PullReport snapshot_whole(const Visit& visit);

  std::vector<TableStats> stats();
  std::vector<TableEvent> events(int shard);
  // What the codec of pushes carries from one to the next (Q of PowerSGD, residuals of error feedback), for a checkpoint; empty
  // for most. It fits a client of the same layout. Errors: Error(kCheckpoint) where it has another length.
  std::vector<float> push_state() const;
  void load_push_state(std::span<const float> values);
  // Bodies of pushes and of pulled weights, as they travelled, and how many there were (one a step, over all shards).
  const MessageCount& pushed() const { return pushed_; }
  const MessageCount& pulled() const { return pulled_; }
  // ‖residual‖ over all shards.
  double residual_norm() const;
  // Leaves the servers; only destruction is allowed after it.
  void goodbye();

  int state_count() const { return states_; }
  // The workers that the servers have lost, as the last answers to pulls and snapshots tell.
  const std::set<int>& lost() const { return lost_; }
  // How often this worker has pushed to each shard: a row of the matrix (rank, shard).
  const std::vector<uint64_t>& pushes() const { return pushes_; }
  uint64_t step_bytes() const;
  uint64_t owned_bytes() const;  // of the parameters that this worker pushes and pulls, uncoded
  uint64_t bytes_sent() const;   // heads and bodies
  uint64_t bytes_received() const;
  TrafficCount traffic() const;

 private:
  struct Shard {
    std::unique_ptr<Link> link;
    std::vector<size_t> partitions;  // owned, indices into partitioning
    size_t count = 0;                // elements of these
    int64_t clock = 0;
    int lost = 0;
    ValueCoder<T> pushed, pulled;
    std::vector<T> values;
  };

  void greet(int shard);
  void gather(const T* from, const Shard& shard, std::vector<T>& out) const;
  void scatter(const Shard& shard, T* to) const;
  ServerMessage receive(int shard, uint64_t count, ValueCoder<T>& coder);
  void note_lost(int shard, int lost);
  TensorShape shape_of(const Partition& partition) const;
  std::vector<int64_t> ask_report(int shard, MessageCode code);
  // Calls work() and adds to an error which server it was, and at which clock.
  template <typename Work>
  auto with(int shard, const char* what, const Work& work);

  const Meeting meeting_;
  const int worker_;
  const Partitioning partitioning_;
  const ClientLayout layout_;
  std::vector<Shard> shards_;
  std::vector<uint64_t> pushes_;
  MessageCount pushed_, pulled_;
  ValueCoder<T> plain_;
  int states_ = 0;
  int64_t loads_ = 0;
  std::set<int> lost_;
};

}  // namespace starling
