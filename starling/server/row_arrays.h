// RowArrays are rows as arrays, for checkpoints (job/job_checkpoint.h). Any number of shards may have written
// them, and any number of shards may take them.
//
//   put_rows(arrays, "topics", read_rows(store, rank, ranks));   // on every rank; then checkpoint.save()
//
//   for (int r = rank; r < state.ranks; r += ranks)              // on every rank of the resumed run
//     restore_rows(store, get_rows<int32_t>(checkpoint.read(state, r), "topics"));
//   store.clock();
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/job/job_checkpoint.h"
#include "starling/server/row_store.h"

namespace starling {

// Rows one after another. Row i has key keys[i] and the next counts[i] elements.
template <typename T>
struct RowArrays {
  std::vector<int64_t> keys;    // of the rows, ascending within each shard
  std::vector<int32_t> counts;  // elements of each row that are not zero
  std::vector<int32_t> index;   // of these elements
  std::vector<T> value;
};

// Reads the shards s with s mod parts = part. All workers must have ended their clock, and none may push
// before all have read (barrier).
template <typename T>
RowArrays<T> read_rows(BasicRowStore<T>& store, int part, int parts);
// Adds the rows to a store that has none of them. At staleness s, reads see the rows of all workers when all
// workers have called clock() s + 1 times afterwards. Without a bound, all workers must meet (barrier) after
// a pull of each. Errors: ConfigError if an index is not below the width.
template <typename T>
void restore_rows(BasicRowStore<T>& store, const RowArrays<T>& rows);

// Puts the rows under names that begin with `name`.
template <typename T>
void put_rows(CheckpointArrays& arrays, const std::string& name, const RowArrays<T>& rows);
// Returns the rows that put_rows() has put. Errors: Error(kCheckpoint) if an array is missing or the lengths
// do not fit each other.
template <typename T>
RowArrays<T> get_rows(const CheckpointArrays& arrays, const std::string& name);

}  // namespace starling
