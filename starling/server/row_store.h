// RowStore is a worker's view of a row table: rows of `width` elements with 64-bit keys. Topic models keep
// their counts in it. A row exists from the first push to it, and a row that no worker has pushed reads as
// zeros.
//
//   while (sampling) {
//     store.pull(keys, rows);     // rows.row(i) has the elements of keys[i] that are not zero
//     …
//     store.push(deltas);         // adds to rows
//     store.clock();              // ends the clock of this worker
//   }
//
// Clocks. A worker's clock is the number of its calls of clock().
//
//   staleness 0    A pull at clock c contains every worker's pushes of the clocks below c, and no other push.
//                  So it contains no own push of clock c, and does not depend on the order of events.
//   staleness s    A pull at clock c contains every worker's pushes of the clocks below c - s, and all own
//                  pushes before the pull was started. It may contain later pushes of other workers.
//   no value       A pull is answered at once, and contains all own pushes before it was started.
//
// LocalRowStore (local_row_store.h) is the table in one process. RowClient (row_client.h) is the worker's
// side of a table that is sharded over servers.
//
// Threads: one thread at a time uses a store. Errors: CommError and TimeoutError name the server; ConfigError
// says that a delta does not fit the table, such as an index that is not below the width.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "starling/server/row_batch.h"

namespace starling {

// T: int32_t, int64_t, float or double.
template <typename T>
class BasicRowStore {
 public:
  virtual ~BasicRowStore() = default;

  // Returns the number of elements of each row.
  virtual int32_t width() const = 0;
  // Returns whether a push also adds its sum to the row kTotalsKey (RowTableOptions::totals).
  virtual bool totals() const = 0;
  // Adds changes to rows. Several deltas may have one key. Returns when the caller's memory may change.
  virtual void push(std::span<const BasicRowDelta<T>> deltas) = 0;
  // Like push(), but does not add to the totals. The rows are those that a scan of an earlier table has
  // given.
  virtual void restore(std::span<const BasicRowDelta<T>> rows) = 0;
  // Reads rows. Blocks until the staleness allows it. Keys may repeat. out.row(i) has key keys[i].
  void pull(std::span<const int64_t> keys, BasicRowBatch<T>& out) { wait(start_pull(keys), out); }
  // Starts a pull and returns its number for wait(). The rows are those of the present clock, whenever wait()
  // is called. The keys are copied. wait() must be called once for each start, in the order of the starts.
  // clock() receives the answers to all started pulls. wait() then returns at once.
  virtual uint64_t start_pull(std::span<const int64_t> keys) = 0;
  // Blocks until a started pull is answered.
  virtual void wait(uint64_t pull, BasicRowBatch<T>& out) = 0;
  // Ends this worker's clock: its pushes since the last call are complete.
  virtual void clock() = 0;
  // Returns the number of calls of clock().
  virtual int64_t clocks() const = 0;

  // Receives a slice of a scan: rows with ascending keys.
  using Visit = std::function<void(const BasicRowBatch<T>& rows)>;
  // Returns the number of shards.
  virtual int shards() const = 0;
  // Reads all rows of a shard that are not zero, in ascending order of their keys and in slices. Each slice
  // is a read as pull() is one. No worker may push meanwhile, except at staleness 0.
  virtual void scan(int shard, const Visit& visit) = 0;

  // Returns the bytes that this worker has sent to servers, heads included.
  virtual uint64_t bytes_sent() const = 0;
  // Returns the bytes that servers have sent to this worker, heads included.
  virtual uint64_t bytes_received() const = 0;
};
// A store of counts.
using RowStore = BasicRowStore<int32_t>;

}  // namespace starling
