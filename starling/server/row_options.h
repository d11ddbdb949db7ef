// RowTableOptions describes a row table. All servers and workers of a table have equal options.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "starling/base/keyed_random.h"
#include "starling/comm/types.h"

namespace starling {

// The options of a row table.
struct RowTableOptions {
  int32_t width = 1;  // elements of each row, 1 … kMaxRowWidth
  int workers = 1;
  // The bound s of the staleness, as row_store.h defines it. 0: bulk synchronous. No value: no bound.
  std::optional<int64_t> staleness = 0;
  // The most bytes that a shard may hold, as RowTable::held_bytes() counts them. 0: no limit.
  uint64_t memory_limit = 0;
  // Whether each push also adds the sum of its changes to the row kTotalsKey, which then holds the sum over
  // all rows. It is an ordinary row: workers pull it by its key, and scans visit it.
  bool totals = false;
};

// The largest width of a table.
inline constexpr int32_t kMaxRowWidth = 1 << 24;
// The key of the row of totals. Any other use of this key is allowed in a table without totals.
inline constexpr int64_t kTotalsKey = -1;

// Throws ConfigError that names the invalid option and the allowed values.
void check_row_options(const RowTableOptions& options);
// Throws ConfigError, too, if the options have another number of workers than the job.
void check_row_options(const RowTableOptions& options, int workers_of_job);

// Returns the shard of a key. Equal on all ranks.
constexpr int shard_of_key(int64_t key, int shards) {
  return static_cast<int>(mix64(static_cast<uint64_t>(key) + kGolden) % static_cast<uint64_t>(shards));
}

// Returns the DataType of T, which is one of the four types of rows.
template <typename T>
constexpr DataType row_type() {
  if constexpr (std::is_same_v<T, int32_t>) return DataType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return DataType::kInt64;
  if constexpr (std::is_same_v<T, float>) return DataType::kFp32;
  return DataType::kFp64;
}

}  // namespace starling
