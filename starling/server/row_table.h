// RowTable holds one shard of a row table and decides when a worker may read. The semantics of clocks are
// those of row_store.h (Ho et al., NIPS 2013).
//
// The table is pure logic: it has no threads, no time and no messages. At staleness 0 it holds each push
// until all workers have ended the push's clock, and then adds the pushes in the order of the workers. So
// equal runs give equal bits, also in floating point. Otherwise a push is added when it arrives.
//
// A row exists while it has an element that is not zero. Its memory is that of stored_row.h.
//
// Faults: a sum that overflows, the memory limit, and a lost worker make the rows useless, because the
// changes that a worker has counted are not in them. So every later push, clock and read gets that error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "starling/base/error.h"
#include "starling/server/row_batch.h"
#include "starling/server/row_options.h"
#include "starling/server/stored_row.h"

namespace starling {

// The counts of a shard.
struct RowTableStats {
  uint64_t rows = 0;        // rows that exist
  uint64_t dense_rows = 0;  // those that are dense
  uint64_t elements = 0;    // elements of these rows that are not zero
  uint64_t held_bytes = 0;  // RowTable::held_bytes()
  uint64_t peak_bytes = 0;  // the most that held_bytes() has been
  int64_t max_staleness = 0;
};

// T: int32_t, int64_t, float or double. Not thread-safe. Errors: CommError for requests that a worker must
// not make, such as a push at another clock than its own.
template <typename T>
class RowTable {
 public:
  // Errors: ConfigError for invalid options.
  explicit RowTable(const RowTableOptions& options);

  // Adds rows of keyed changes at a worker's clock. The rows have ascending indices and no zeros. Errors:
  // Error(kMemory) beyond the memory limit; Error(kNumeric) if an element overflows or is not finite.
  void push(int worker, int64_t clock, const BasicRowBatch<T>& rows);
  // Ends a worker's clock.
  void end_clock(int worker, int64_t clock);
  // Returns whether the worker may read at its clock.
  bool may_read(int worker, int64_t clock);
  // Records a read and returns by how many clocks the slowest worker is behind the reader.
  int64_t note_read(int worker);
  // Returns a row. The spans are valid until the next call.
  BasicRow<T> row(int64_t key);
  // Calls visit(row) for the rows with keys from `from` on, in ascending order, until it returns false.
  // Returns whether all of them were visited.
  template <typename Visit>
  bool for_each_from(int64_t from, const Visit& visit) {
    const std::vector<int64_t>& keys = sorted_keys();
    for (auto at = first_key(keys, from); at != keys.end(); ++at) {
      if (!visit(rows_.at(*at).view(*at, scratch_)) && at + 1 != keys.end()) return false;
    }
    forget_keys();
    return true;
  }

  // Removes a worker that needs the table no more.
  void leave(int worker);
  // Removes a lost worker. reason: why it was lost.
  void lose(int worker, const std::string& reason);
  // Makes every later request throw the error. worker: the worker that caused it, or -1. The first error
  // stays.
  void spoil(ErrorCode code, const std::string& why, int worker = -1);

  // Returns the worker with the lowest clock, or -1 if all have left.
  int slowest() const;
  // Returns the number of clocks that a worker has ended.
  int64_t clock_of(int worker) const { return workers_[static_cast<size_t>(worker)].clock; }
  // Returns the bytes that the rows and the held pushes take: for each row its allocated elements and
  // kRowOverhead.
  uint64_t held_bytes() const { return held_bytes_; }
  // Returns the counts.
  RowTableStats stats() const;
  // Returns the options.
  const RowTableOptions& options() const { return options_; }

  // The bytes of a row besides its elements: the entry in the hash table and the head of its memory.
  static constexpr uint64_t kRowOverhead = sizeof(std::pair<const int64_t, StoredRow<T>>) + 32;

 private:
  using Rows = std::unordered_map<int64_t, StoredRow<T>>;
  struct Worker {
    int64_t clock = 0;
    bool present = true;
  };

  void check_usable() const;
  void check_clock(int worker, int64_t clock, const char* what) const;
  void add(Rows& rows, const BasicRow<T>& change);
  void apply_complete();
  void apply(Rows& held);
  const std::vector<int64_t>& sorted_keys();
  void forget_keys();
  static std::vector<int64_t>::const_iterator first_key(const std::vector<int64_t>& keys, int64_t from);

  const RowTableOptions options_;
  Rows rows_;
  // Staleness 0: the pushes of clocks that are not complete. Integers of all workers are added up in one map,
  // because the order of their addition does not count.
  std::map<int64_t, std::vector<Rows>> held_;
  std::vector<Worker> workers_;
  uint64_t held_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
  int64_t max_staleness_ = 0;
  std::vector<int64_t> keys_;  // of all rows, ascending, if keys_valid_; only during a scan
  bool keys_valid_ = false;
  RowScratch<T> scratch_;
  std::optional<Error> spoiled_;
};

}  // namespace starling
