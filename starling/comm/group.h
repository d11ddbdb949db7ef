// Group: an ordered set of ranks that communicate. It is immutable for its generation.
//
// A Group carries out all collectives. It works on spans of bytes and does not know torch. starling/c10d
// wraps it as a c10d::Backend. Ranks with the same host identity communicate through shared memory. Ranks of
// different hosts communicate over authenticated connections. make_group (comm/bootstrap.h) chooses both, and
// no caller of this header sees the choice.
//
// Work: every operation is started and returns a Work (comm/work.h). It progresses without further calls into
// the group, on threads of the group. The free functions at the end of this file block: they start an
// operation and wait for it. The calling thread executes a blocking call, unless a started operation that
// comes first is not done yet.
//
// Order: every rank calls the same collectives in the same order. Every call carries its Operation
// (comm/operation.h). If the operations differ, every rank gets a CommError that names both sides.
// Three sequences keep the order of the calls: the collectives, the messages to one peer, and the messages
// from one peer with one tag. They progress beside each other.
//
// Waiting: every wait ends after GroupOptions::timeout with a TimeoutError; in a collective of several hosts
// up to 3 s later. The error names the late rank with its host, and what that rank did not do. If the rank is
// late for a collective, the error also gives the sequence number.
//
// Failure: a CommError names a dead peer within comm.dead_after_s + 1 s. With MPI, mpiexec ends the run.
//
// Threads: several threads may use a group. The order of two calls of different threads is defined if one
// call has returned before the other begins.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starling/comm/algorithm.h"
#include "starling/comm/call.h"
#include "starling/comm/host/local_sync.h"
#include "starling/comm/types.h"
#include "starling/comm/window.h"
#include "starling/comm/work.h"

namespace starling {

class FlightRecorder;
class RemoteTeam;
struct Elements;

// An all-reduce between hosts that a program brings (spec/extensions.h): reduces `count` elements of `data`
// in place over the ranks of `team`.
using RemoteAllReduce =
    std::function<void(RemoteTeam& team, void* data, size_t count, const Elements& elements)>;

// GroupOptions says how the ranks of a group communicate and how long they wait for each other.
struct GroupOptions {
  std::chrono::milliseconds timeout{60'000};  // the longest time that one wait may take
  // The bytes of messages of one peer that a rank holds until it receives them (send()). A larger value lets
  // a peer run further ahead. One message may be longer.
  uint64_t inbox_bytes = uint64_t{256} << 20;
  bool shared_memory = true;  // false: ranks of one host use the network, too
  // Whether a window is unmapped before the group ends: at the first allocate_window() after all ranks of the
  // host have dropped their pointers to it. No tensor may lie in it any more then. false: the group keeps its
  // windows.
  bool free_windows = false;
  // The algorithm between hosts. comm/choice/choice.h chooses for kAuto, and for collectives that this
  // algorithm cannot carry out.
  Algorithm algorithm = Algorithm::kAuto;
  // Carries out the all-reduces between hosts in place of `algorithm`, if it is set. All ranks must pass an
  // equal function.
  RemoteAllReduce all_reduce;
  std::string tuning;        // the text of a tuning file (choice/tuning.h), which counts on rank 0 only
  std::string link = "tcp";  // the name of the network between the hosts in choice/tuning.h
  std::shared_ptr<FlightRecorder> recorder;  // records every operation of this rank; may be null
  // Called once per wait after a tenth of the timeout. The argument is a text such as "rank 2 (node-b) did
  // not enter barrier #7 within 6 s; …". Any thread may call it.
  std::function<void(const std::string&)> warn;
};

// TrafficCount counts the payload that this rank has moved: the bytes of tensors and messages, without the
// headers and seals of the protocol.
//
// Sockets: a byte counts when its message has been handed to a connection.
// Windows: a byte counts when it is published, once for each other rank to which it is published. It does not
// matter whether a peer copies the byte or computes with it in place. An all-gather of b bytes on p ranks
// thus publishes (p − 1) b bytes per rank, as it would send them through sockets.
struct TrafficCount {
  uint64_t socket_sent = 0;       // into connections
  uint64_t socket_received = 0;   // from connections
  uint64_t window_published = 0;  // in shared memory, to peers
  uint64_t window_received = 0;   // in shared memory, by peers to this rank
  uint64_t window_far = 0;        // of both, what all-reduces in place moved between NUMA nodes
  // Returns all bytes that this rank has sent.
  uint64_t sent() const { return socket_sent + window_published; }
  // Returns all bytes that peers have sent to this rank.
  uint64_t received() const { return socket_received + window_received; }
};

// Group is the interface of all collectives and messages. The top of this file states the contract.
class Group {
 public:
  virtual ~Group() = default;

  // This rank's position in the group.
  virtual int rank() const = 0;
  // The number of ranks.
  virtual int size() const = 0;
  // The number of `rank` in the job, for messages. It differs from `rank` in a group of some of the job's
  // ranks.
  virtual int job_rank(int rank) const { return rank; }
  // This rank's position among the ranks of its host.
  virtual int local_rank() const = 0;
  // The ranks of the group that share memory with this rank, itself included, ascending.
  virtual std::vector<int> local_ranks() const = 0;
  // The name of the host of `rank`, for messages.
  virtual std::string host_of(int rank) const = 0;
  // The bytes that this rank has moved so far.
  virtual TrafficCount traffic() const = 0;

  // Allocates memory that all ranks of this host map. It is a collective over the ranks of this host.
  // `bytes` is the size of each rank's region. All ranks pass the same size.
  // Errors: CommError if the sizes differ or the kernel refuses memory; TimeoutError if a rank is late.
  virtual std::shared_ptr<Window> allocate_window(size_t bytes) = 0;

  // Returns the counters that the ranks of this host show each other (comm/host/local_sync.h). The group owns
  // them. They are independent of the collectives.
  virtual LocalSync* local_sync() = 0;

  // Each function below starts an operation. The result is in place (in `data` or `out`) when the Work is
  // completed without an error. `count` is in elements of `type`.
  // Errors: a wrong argument throws CommError from the call. Faults come out of Work::wait().

  // Completes when every rank has started it.
  [[nodiscard]] WorkPtr barrier() { return start({.kind = CollectiveKind::kBarrier}); }
  // Copies the `data` of rank `root` to the `data` of every rank.
  [[nodiscard]] WorkPtr broadcast(void* data, size_t count, DataType type, int root) {
    return start(broadcast_call(data, count, type, root));
  }
  // Reduces `data` in place, element by element. All ranks get the same bits.
  // Within a host, the values of an element are added in rank order. Tensors of 256 KB and more in windows
  // are an exception on several NUMA nodes. They are added within each node first, then over the nodes.
  // Then the sums of the hosts are added in the order of the hosts. The order may differ if an algorithm is
  // named or tuned, or if there are more than 16 hosts.
  // bf16 and fp16 values are added in fp32. Some algorithms between hosts round in every step
  // (comm/collective/).
  [[nodiscard]] WorkPtr all_reduce(void* data, size_t count, DataType type, ReduceOp op) {
    return start(all_reduce_call(data, count, type, op));
  }
  // Reduces size() parts and gives each rank its part. `in` has size() * count elements, `out` has count
  // elements.
  [[nodiscard]] WorkPtr reduce_scatter(const void* in, void* out, size_t count, DataType type, ReduceOp op) {
    return start(reduce_scatter_call(in, out, count, type, op));
  }
  // Gathers the parts of all ranks in rank order. `in` has count elements, `out` has size() * count elements.
  [[nodiscard]] WorkPtr all_gather(const void* in, void* out, size_t count, DataType type) {
    return start(all_gather_call(in, out, count, type));
  }
  // Sends part r of `in` to rank r, and receives part r of `out` from rank r. The counts are in elements, one
  // per rank. The parts lie one after another, in rank order. The group copies the counts. A CommError says
  // that sender and receiver do not agree on a count.
  [[nodiscard]] WorkPtr all_to_all(const void* in, std::span<const size_t> in_counts, void* out,
                                   std::span<const size_t> out_counts, DataType type) {
    return start(all_to_all_call(in, in_counts, out, out_counts, type));
  }
  // Sends a message to `peer`. Messages are matched by (peer, tag), in the order of the calls.
  // The Work completes when `data` may change. A long message may wait for its recv(). Meanwhile the group
  // takes in what other ranks send, so ranks may send to each other before they receive. A peer that holds
  // GroupOptions::inbox_bytes of this rank's messages takes no more of them until it receives some.
  [[nodiscard]] WorkPtr send(const void* data, size_t bytes, int peer, uint32_t tag) {
    return start(send_call(data, bytes, peer, tag));
  }
  // Receives the oldest message of `peer` with this tag. A CommError says that its size is not `bytes`.
  // Every (peer, tag) with a started receive occupies a thread of the group until the message is there.
  [[nodiscard]] WorkPtr recv(void* data, size_t bytes, int peer, uint32_t tag) {
    return start(recv_call(data, bytes, peer, tag));
  }

  // Starts the operation that `call` describes.
  [[nodiscard]] virtual WorkPtr start(const Call& call) = 0;
  // Starts the operation and returns when it is completed. The calling thread executes it, unless a started
  // operation that comes first is not done yet. Errors: as start() and Work::wait().
  virtual void run(const Call& call) = 0;
  // Receives like recv(), but does not wait: returns false if no message of `peer` with this tag is complete,
  // or if `peer` is this rank. Only one thread at a time may receive from a (peer, tag).
  // Errors: those of recv(), from this call.
  virtual bool try_recv(void* data, size_t bytes, int peer, uint32_t tag) = 0;

  // Ends every wait of this rank with a CommError that contains `reason`. Later calls throw it, too. If the
  // group has failed before, its first failure stays. Starling's own engine also ends the waits of the other
  // ranks with `reason`. MPI does not.
  virtual void abort(const std::string& reason) = 0;
};

// The blocking forms. Each starts the operation of Group with its name and returns when it is completed.
// Errors: what the operation throws.

// Returns when every rank has called it.
inline void barrier(Group& group) {
  group.run({.kind = CollectiveKind::kBarrier});
}
// Blocking form of Group::broadcast().
inline void broadcast(Group& group, void* data, size_t count, DataType type, int root) {
  group.run(broadcast_call(data, count, type, root));
}
// Blocking form of Group::all_reduce().
inline void all_reduce(Group& group, void* data, size_t count, DataType type, ReduceOp op) {
  group.run(all_reduce_call(data, count, type, op));
}
// Blocking form of Group::reduce_scatter().
inline void reduce_scatter(Group& group, const void* in, void* out, size_t count, DataType type,
                           ReduceOp op) {
  group.run(reduce_scatter_call(in, out, count, type, op));
}
// Blocking form of Group::all_gather().
inline void all_gather(Group& group, const void* in, void* out, size_t count, DataType type) {
  group.run(all_gather_call(in, out, count, type));
}
// Blocking form of Group::all_to_all().
inline void all_to_all(Group& group, const void* in, std::span<const size_t> in_counts, void* out,
                       std::span<const size_t> out_counts, DataType type) {
  group.run(all_to_all_call(in, in_counts, out, out_counts, type));
}
// Blocking form of Group::send().
inline void send(Group& group, const void* data, size_t bytes, int peer, uint32_t tag) {
  group.run(send_call(data, bytes, peer, tag));
}
// Blocking form of Group::recv().
inline void recv(Group& group, void* data, size_t bytes, int peer, uint32_t tag) {
  group.run(recv_call(data, bytes, peer, tag));
}

}  // namespace starling
