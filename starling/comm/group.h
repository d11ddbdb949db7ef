// Group: an ordered set of ranks that communicate, immutable for its generation. The engine of all collectives, on byte
// spans, without torch; starling/c10d wraps it as a c10d::Backend.
//
// Ranks of one host (equal host identity) meet in shared memory; hosts meet over framed, authenticated TCP. Both are
// chosen when the group is made (bootstrap.h) and nobody above this header sees which.
//
// Order: every rank calls the same collectives in the same order. Each carries (sequence, kind, dtype, bytes); where
// these differ between ranks all of them get a CommError that names both sides.
// Waiting: every wait ends after Options::timeout with a TimeoutError that names the collective, its sequence number and
// the late rank with its host. A dead peer is a CommError naming it, within 5 s.
// Threads: a group may be used from several threads; operations are carried out in the order of the calls.
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
#include "starling/comm/local_sync.h"
#include "starling/comm/types.h"
#include "starling/comm/window.h"

namespace starling {

class FlightRecorder;

struct GroupOptions {
  std::chrono::milliseconds timeout{60'000};
  bool shared_memory = true;  // false: TCP between ranks of one host too
  // Between hosts; where it does not carry out a collective, and for kAuto, see choice.h.
  Algorithm algorithm = Algorithm::kAuto;
  std::string tuning;                        // tuning.h, as text; rank 0's counts for all
  std::string link = "tcp";                  // how tuning.h names what is between the hosts
  std::shared_ptr<FlightRecorder> recorder;  // gets every operation of this rank; may be null
  // Told once a wait when a tenth of the timeout has passed: "rank 2 (node-b) is late: …". From any thread.
  std::function<void(const std::string&)> warn;
};

// Bytes that entered or left a socket, and bytes that were written for or read from peers in shared memory.
struct TrafficCount {
  uint64_t socket_sent = 0;
  uint64_t socket_received = 0;
  uint64_t window_written = 0;
  uint64_t window_read = 0;
  uint64_t window_far = 0;  // of these two, in all-reduces in place: of windows on another NUMA node
};

class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // position among the ranks of this host
  virtual std::vector<int> local_ranks()
      const = 0;  // the group's ranks that share memory with this one, ascending
  virtual std::string host_of(int rank) const = 0;  // for messages
  virtual TrafficCount traffic() const = 0;

  // Collective over the ranks of this host: memory that they all map. `bytes` is the size of each rank's region.
  virtual std::shared_ptr<Window> allocate_window(size_t bytes) = 0;

  // Numbers that local_ranks() show each other (local_sync.h), independent of the collectives. Owned by the group.
  virtual LocalSync* local_sync() = 0;

  // All calls below block until the result is in place (in `data`, or `out`). `count` is in elements of `type`.
  virtual void barrier() = 0;
  virtual void broadcast(void* data, size_t count, DataType type, int root) = 0;
  // In place: bit-identical on all ranks. The sum of element i is taken in rank order within a host (where its ranks are bound
  // to several NUMA nodes, and tensors from 256 KB on lie in windows: within each node, then over these), then, unless another
  // algorithm is named, tuned, or chosen among more than 16 hosts, in the order of the hosts; bf16 and fp16 are summed in fp32.
  virtual void all_reduce(void* data, size_t count, DataType type, ReduceOp op) = 0;
  // in: size() * count elements; out: count elements, this rank's part.
  virtual void reduce_scatter(const void* in, void* out, size_t count, DataType type, ReduceOp op) = 0;
  // in: count elements; out: size() * count elements, in rank order.
  virtual void all_gather(const void* in, void* out, size_t count, DataType type) = 0;
  // Uneven splits in elements, one a rank; displacements are their running sums.
  virtual void all_to_all(const void* in, std::span<const size_t> in_counts, void* out,
                          std::span<const size_t> out_counts, DataType type) = 0;
  // Point to point, matched by (peer, tag) in order. Independent of the collectives: may be called from other threads
  // meanwhile. send returns when the bytes are under way and `data` may change; a long message waits for its recv, and
  // takes in what others send meanwhile, so ranks may send to each other before they receive.
  virtual void send(const void* data, size_t bytes, int peer, uint32_t tag) = 0;
  virtual void recv(void* data, size_t bytes, int peer, uint32_t tag) = 0;
  // recv without waiting: false where no message of `peer` with this tag is complete yet. From one thread a (peer, tag).
  virtual bool try_recv(void* data, size_t bytes, int peer, uint32_t tag) = 0;

  // Wakes every waiter of this rank with a CommError, now and in later calls.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace starling
