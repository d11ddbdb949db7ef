// A naive simulation of row tables for tests: maps of maps, and changes that are a function of the worker and
// the clock. The byte counts are computed from the formulas of row_message.h in plain loops.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "starling/base/keyed_random.h"
#include "starling/server/row_message.h"
#include "starling/server/row_store.h"

namespace starling {

// Rows without zeros: value of each element by key and index.
template <typename T>
using NaiveRows = std::map<int64_t, std::map<int32_t, T>>;

// Adds a change to an element, and deletes zeros and rows without elements.
template <typename T>
void naive_add(NaiveRows<T>& rows, int64_t key, int32_t index, T change) {
  T& value = rows[key][index];
  value += change;
  if (value == 0) rows[key].erase(index);
  if (rows[key].empty()) rows.erase(key);
}

// The changes of a worker in one clock, as triples.
struct NaiveChange {
  int64_t key;
  int32_t index;
  int32_t change;
};

// Keys are in −keys/2 … keys/2 times a large number. Changes are −3 … 3, so that elements often become zero.
inline std::vector<NaiveChange> changes_of(uint64_t seed, int worker, int64_t clock, int count, int keys,
                                           int32_t width) {
  std::vector<NaiveChange> out;
  for (int i = 0; i < count; ++i) {
    const uint64_t bits = key_of(seed, static_cast<uint64_t>(worker) << 32 | static_cast<uint64_t>(clock),
                                 static_cast<uint64_t>(i));
    const int64_t key = static_cast<int64_t>(bits % static_cast<uint64_t>(keys)) - keys / 2;
    out.push_back({key * 1'000'003, static_cast<int32_t>((bits >> 20) % static_cast<uint64_t>(width)),
                   static_cast<int32_t>((bits >> 50) % 7) - 3});
  }
  return out;
}

// Pushes changes, one delta for each run of changes with equal keys.
template <typename T>
void push_changes(BasicRowStore<T>& store, const std::vector<NaiveChange>& changes) {
  std::vector<int32_t> index;
  std::vector<T> change;
  for (const NaiveChange& c : changes) {
    index.push_back(c.index);
    change.push_back(static_cast<T>(c.change));
  }
  std::vector<BasicRowDelta<T>> deltas;
  for (size_t i = 0, begin = 0; i < changes.size(); ++i) {
    if (i + 1 < changes.size() && changes[i + 1].key == changes[i].key) continue;
    deltas.push_back({changes[i].key, std::span(index).subspan(begin, i + 1 - begin),
                      std::span(change).subspan(begin, i + 1 - begin)});
    begin = i + 1;
  }
  store.push(deltas);
}

// Returns the rows of a batch that are not zero.
template <typename T>
NaiveRows<T> naive_of(const BasicRowBatch<T>& rows) {
  NaiveRows<T> out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const BasicRow<T> row = rows.row(i);
    for (size_t j = 0; j < row.index.size(); ++j) out[row.key][row.index[j]] = row.value[j];
  }
  return out;
}

// Returns all rows of a store, by scans of its shards.
template <typename T>
NaiveRows<T> naive_scan(BasicRowStore<T>& store) {
  NaiveRows<T> out;
  for (int s = 0; s < store.shards(); ++s)
    store.scan(s, [&](const BasicRowBatch<T>& rows) { out.merge(naive_of(rows)); });
  return out;
}

// v(x) and v(z(x)) of row_message.h, by counting digits to the base 128.
inline size_t naive_v(uint64_t x) {
  return x < 128 ? 1 : 1 + naive_v(x / 128);
}
inline size_t naive_vz(int64_t x) {
  return naive_v(x >= 0 ? 2 * static_cast<uint64_t>(x) : 2 * (~static_cast<uint64_t>(x)) + 1);
}
// The bytes of a row of integers without its key.
template <typename T>
size_t naive_row_bytes(const std::map<int32_t, T>& row, int32_t width) {
  size_t sparse = naive_v(2 * row.size()), dense = 1;
  int32_t previous = -1;
  for (const auto& [index, value] : row) {
    sparse += naive_v(static_cast<uint64_t>(index - previous - 1)) + naive_vz(value);
    previous = index;
  }
  for (int32_t i = 0; i < width; ++i) dense += row.contains(i) ? naive_vz(row.at(i)) : 1;
  return std::min(sparse, dense);
}

}  // namespace starling
