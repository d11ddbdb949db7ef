// ServerClient is a worker's access to the shards of the parameter server. It gathers the values of a shard
// from flat memory, sends them, and writes the answers to their places.
//
//   ServerClient<float> client(store, rendezvous, worker, partitioning, layout);
//   client.load(parameters, {}, 0);   // one worker per parameter; other workers: client.expect_load()
//   for each step: client.pull(parameters);  …;  client.push(gradients, {.lr = lr, .loss = loss});
//   client.goodbye();
//
// Bytes: a step with push and pull takes push_bytes() + pull_bytes(). These are 2 · |W| · sizeof(T) + 3 · 56
// bytes per shard, heads included. They are summed over the shards on which this worker owns something. With
// codecs, their encoded_bytes() take the place of |W| · sizeof(T); they are an upper bound if messages vary
// in length. A shard on which the worker owns nothing receives nothing in a step.
//
// Client cache (Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
// NIPS 2013, section 3). With a bound s of the staleness, a worker keeps what a shard has sent. A shard's
// answer at clock c with staleness d contains every worker's updates of clocks below r = c - d. A read at
// clock c is answered from the cache if r >= c - s, and otherwise by the shard. All partitions of a shard are
// pulled together, so they have one age. A cached read also contains the worker's own updates since:
//
//   x ← x − lr λ g        for each own push
//
// This is the server's update for SGD without momentum, weight decay and weights of staleness. Otherwise it
// takes the place of the server's update until the next answer.
//
// Threads: one thread at a time uses a client.
//
// Errors: CommError and TimeoutError name the server, its rank, and the request. If the process of a server
// dies, the next pull reports the server within 5 s.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "starling/server/parameter_partition.h"
#include "starling/server/server_rendezvous.h"
#include "starling/server/server_table.h"
#include "starling/server/value_coder.h"

namespace starling {

// Where the memory of this worker holds which parameters.
struct ClientLayout {
  // The offset of each parameter in flat memory, in elements.
  std::vector<size_t> offset;
  // Whether this worker owns a parameter, by parameter. Empty: it owns all. Parameters that it does not own
  // are neither pushed nor pulled.
  std::vector<bool> owned;
  // The codecs of gradients and of weights, equal to those of the servers (ServerOptions).
  CodecSpec push_codec;
  CodecSpec pull_codec;
  // The shape of each parameter, for codecs that use matrices. Empty: all are vectors.
  std::vector<TensorShape> shapes;
  // The bound s of the staleness, for which reads may come from the cache. 0: every read asks the shards.
  int64_t staleness = 0;
  // λ of this worker's pushes, as in ServerOptions. 0: 1 / (number of workers that are not lost).
  double lambda = 0;
};

// What the servers tell with the parameters.
struct PullReport {
  double loss = 0;    // as ReadGrant::loss, of the first shard that answered
  bool stop = false;  // true if some worker asked all workers to meet, and they meet after this step
  // Asynchronous, after some worker asked all workers to meet (PushNotes::stop): they meet after this number
  // of pushes. Otherwise 0.
  int64_t stop_at = 0;
  int64_t staleness = 0;  // the largest staleness of the shards' answers and of the cached values
  int64_t updates = 0;    // snapshots: the number of updates made so far
  // pulls: the update of the last push was not made, and the worker must push again (server_table.h)
  bool redo = false;
};

// The number of messages and the sum of their bytes.
struct MessageCount {
  uint64_t bytes = 0;
  uint64_t messages = 0;
  // Returns the mean bytes of a message, or 0 if there was none.
  double mean() const {
    return messages > 0 ? static_cast<double>(bytes) / static_cast<double>(messages) : 0;
  }
};

// The client of one worker. T: float or double.
template <typename T>
class ServerClient {
 public:
  using Value = T;

  // Connects to all servers. Blocks. The store must outlive the client. Errors: as meet_server().
  ServerClient(Store& store, const ServerRendezvous& rendezvous, int worker, Partitioning partitioning,
               ClientLayout layout);
  ~ServerClient();

  // Sets the owned parameters on the servers, and the states of the optimizer after `updates` updates.
  // Without states they are zeros.
  void load(const T* parameters, const std::vector<const T*>& states, int64_t updates);
  // Tells that another worker loads. The next pull waits until that worker has loaded.
  void expect_load() { forget(), ++loads_; }

  // Pushes the gradients of the owned parameters. Returns when they are sent.
  void push(const T* gradients, const PushNotes& notes);
  // Returns this worker's clock on the first shard on which it owns parameters: the number of its pushes in
  // this run. If synchronous, each pull sets it to the number of updates that the shard has made.
  int64_t push_clock() const;
  // Pulls the owned parameters. Blocks until the staleness allows the read on every shard.
  PullReport pull(T* parameters);

  // Pulls a state that is equal for all workers (server_table.h). Collective over the workers. If
  // `parameters` is null, the worker takes part and receives nothing.
  PullReport snapshot(T* parameters);
  // Receives the values of one partition. section: 0 for the parameters, k for the k-th state of the
  // optimizer.
  using Visit = std::function<void(int section, const Partition& partition, const T* values)>;
  // Like snapshot(), for one worker that takes all partitions, owned or not.
  PullReport snapshot_whole(const Visit& visit);

  // Asks the shards for their counts and returns them by shard.
  std::vector<ServerTableStats> stats();
  // Asks a shard for its recorded events (ServerOptions::record_events).
  std::vector<ServerTableEvent> events(int shard);
  // Returns what the codec of pushes keeps from one push to the next (Q of PowerSGD, residuals of error
  // feedback), for a checkpoint. It is empty for most codecs and fits a client of the same layout.
  std::vector<float> push_state() const;
  // Restores push_state(). Errors: Error(kCheckpoint) if the length differs.
  void load_push_state(std::span<const float> values);
  // Returns the number and bytes of the bodies of pushes, as they were sent. The bodies of one step count as
  // one message over all shards.
  const MessageCount& pushed() const { return pushed_; }
  // Returns the number and bytes of the bodies of pulled weights. The bodies of one step count as one message
  // over all shards.
  const MessageCount& pulled() const { return pulled_; }
  // Returns ‖residual‖ over all shards.
  double residual_norm() const;
  // Leaves the servers. Only destruction is allowed afterwards.
  void goodbye();

  // Returns the number of states of the optimizer per parameter.
  int state_count() const { return states_; }
  // Returns the workers that the servers have lost, as the last answers to pulls and snapshots told.
  const std::set<int>& lost() const { return lost_; }
  // Returns how often this worker has pushed to each shard: a row of the matrix (rank, shard).
  const std::vector<uint64_t>& pushes() const { return pushes_; }
  // Returns how many reads of a shard were answered from the cache.
  uint64_t cached_reads() const { return cached_reads_; }
  // Return the bytes of one push, and of one pull with its request, heads included. The values are upper
  // bounds if the codecs' messages vary in length, or if reads come from the cache.
  uint64_t push_bytes() const;
  uint64_t pull_bytes() const;
  // Returns the bytes of the parameters that this worker pushes and pulls, before coding.
  uint64_t owned_bytes() const;
  // Returns the bytes of all heads and bodies that this worker has sent.
  uint64_t bytes_sent() const;
  // Returns the bytes of all heads and bodies that this worker has received.
  uint64_t bytes_received() const;
  // Returns bytes_received() of each shard, by shard.
  std::vector<uint64_t> received_by_shard() const;
  // Returns the traffic of the worker's groups with the servers.
  TrafficCount traffic() const;

 private:
  struct Shard {
    std::unique_ptr<Link> link;
    std::vector<size_t> partitions;  // the owned ones, as indices into partitioning_
    size_t count = 0;                // their elements
    int64_t clock = 0;
    int64_t complete = -1;  // r of the shard's values in the worker's parameters; -1: the cache is empty
    bool unread = false;    // whether `values` is a gradient that was pushed since the last read
    int lost = 0;
    ValueCoder<T> pushed, pulled;
    std::vector<T> values;
  };

  void greet(int shard);
  void gather(const T* from, const Shard& shard, std::vector<T>& out) const;
  void scatter(const Shard& shard, T* to) const;
  ServerMessage receive(int shard, uint64_t count, ValueCoder<T>& coder);
  void note_lost(int shard, int lost);
  void note_stop(size_t shard, const ServerMessage& answer, PullReport& report);
  size_t first_shard() const;
  void forget();
  bool cached(const Shard& shard) const;
  void add_own(const Shard& shard, T* parameters) const;
  TensorShape shape_of(const Partition& partition) const;
  std::vector<int64_t> ask_report(int shard, MessageCode code);
  // Calls work() and adds to its errors the server, the request and the clock.
  template <typename Work>
  auto with(int shard, const char* what, const Work& work);

  const ServerRendezvous rendezvous_;
  const int worker_;
  const Partitioning partitioning_;
  const ClientLayout layout_;
  std::vector<Shard> shards_;
  std::vector<uint64_t> pushes_;
  MessageCount pushed_, pulled_;
  double rate_ = 0;         // of the last push
  PullReport last_report_;  // of the last pull that a shard answered
  uint64_t cached_reads_ = 0;
  ValueCoder<T> plain_;
  int states_ = 0;
  int64_t loads_ = 0;
  std::set<int> lost_;
};

}  // namespace starling
