#include "starling/server/row_arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "starling/base/error.h"

namespace starling {
namespace {

// The rows that one push restores.
constexpr size_t kRowsOfPush = size_t{1} << 12;

}  // namespace

template <typename T>
RowArrays<T> read_rows(BasicRowStore<T>& store, int part, int parts) {
  RowArrays<T> out;
  for (int shard = part; shard < store.shards(); shard += parts) {
    store.scan(shard, [&](const BasicRowBatch<T>& rows) {
      for (size_t i = 0; i < rows.size(); ++i) {
        const BasicRow<T> row = rows.row(i);
        out.keys.push_back(row.key);
        out.counts.push_back(static_cast<int32_t>(row.index.size()));
        out.index.insert(out.index.end(), row.index.begin(), row.index.end());
        out.value.insert(out.value.end(), row.value.begin(), row.value.end());
      }
    });
  }
  return out;
}

template <typename T>
void restore_rows(BasicRowStore<T>& store, const RowArrays<T>& rows) {
  std::vector<BasicRowDelta<T>> deltas;
  size_t begin = 0;
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    const auto count = static_cast<size_t>(rows.counts[i]);
    if (count > 0)
      deltas.push_back({rows.keys[i], std::span(rows.index).subspan(begin, count),
                        std::span(rows.value).subspan(begin, count)});
    begin += count;
    if (deltas.size() < kRowsOfPush && i + 1 < rows.keys.size()) continue;
    store.restore(deltas);
    deltas.clear();
  }
}

template <typename T>
void put_rows(CheckpointArrays& arrays, const std::string& name, const RowArrays<T>& rows) {
  arrays.put<int64_t>(name + ".keys", rows.keys);
  arrays.put<int32_t>(name + ".counts", rows.counts);
  arrays.put<int32_t>(name + ".index", rows.index);
  arrays.put<T>(name + ".value", rows.value);
}

template <typename T>
RowArrays<T> get_rows(const CheckpointArrays& arrays, const std::string& name) {
  RowArrays<T> rows{arrays.get<int64_t>(name + ".keys"), arrays.get<int32_t>(name + ".counts"),
                    arrays.get<int32_t>(name + ".index"), arrays.get<T>(name + ".value")};
  const bool negative = std::any_of(rows.counts.begin(), rows.counts.end(), [](int32_t n) { return n < 0; });
  const auto elements = std::accumulate(rows.counts.begin(), rows.counts.end(), uint64_t{0});
  if (negative || rows.keys.size() != rows.counts.size() || rows.index.size() != elements ||
      rows.value.size() != elements) {
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("the rows \"{}\" of the checkpoint do not fit each other: {} keys, {} counts, {} "
                    "indices, {} values",
                    name, rows.keys.size(), rows.counts.size(), rows.index.size(), rows.value.size()));
  }
  return rows;
}

#define STARLING_ROW_ARRAYS(T)                                                        \
  template RowArrays<T> read_rows(BasicRowStore<T>&, int, int);                       \
  template void restore_rows(BasicRowStore<T>&, const RowArrays<T>&);                 \
  template void put_rows(CheckpointArrays&, const std::string&, const RowArrays<T>&); \
  template RowArrays<T> get_rows(const CheckpointArrays&, const std::string&)

STARLING_ROW_ARRAYS(int32_t);
STARLING_ROW_ARRAYS(int64_t);
STARLING_ROW_ARRAYS(float);
STARLING_ROW_ARRAYS(double);
#undef STARLING_ROW_ARRAYS

}  // namespace starling
