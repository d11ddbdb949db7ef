// RowDelta and RowBatch carry rows of a row table (server/row_table.h). A row has a 64-bit key of any value
// and `width` elements of type T, which is int32_t, int64_t, float or double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace starling {

// What a push adds to one row: element index[i] gets change[i] more. The indices may come in any order and
// repeatedly. A dense delta has no index and `width` changes. The spans belong to the caller.
template <typename T>
struct BasicRowDelta {
  int64_t key = 0;
  std::span<const int32_t> index;
  std::span<const T> change;
};
// A delta of counts.
using RowDelta = BasicRowDelta<int32_t>;

// A row as it is read: its elements that are not zero, with ascending indices. The spans are valid until the
// batch changes.
template <typename T>
struct BasicRow {
  int64_t key = 0;
  std::span<const int32_t> index;
  std::span<const T> value;
};
// A row of counts.
using Row = BasicRow<int32_t>;

// BasicRowBatch holds rows one after another, without their zeros. One thread uses it.
template <typename T>
class BasicRowBatch {
 public:
  // Returns the number of rows.
  size_t size() const { return rows_.size(); }
  // Returns the i-th row. After a pull, it is the row of the i-th key.
  BasicRow<T> row(size_t i) const {
    const Place& p = rows_[i];
    return {p.key, {index_.data() + p.begin, p.count}, {value_.data() + p.begin, p.count}};
  }
  // Adds the i-th row to `dense`, which has as many elements as the table is wide.
  void add_to(size_t i, std::span<T> dense) const {
    const BasicRow<T> r = row(i);
    for (size_t j = 0; j < r.index.size(); ++j) dense[static_cast<size_t>(r.index[j])] += r.value[j];
  }
  // Returns the number of elements of all rows that are not zero.
  size_t elements() const { return index_.size(); }

  // Removes all rows and keeps the memory.
  void clear() { rows_.clear(), index_.clear(), value_.clear(); }
  // Makes the batch hold `count` rows, all of them zeros with key 0.
  void reset(size_t count) { clear(), rows_.resize(count); }
  // Appends a row of zeros. add() then fills it.
  void begin_row(int64_t key) {
    rows_.emplace_back();
    begin_row_at(rows_.size() - 1, key);
  }
  // Replaces the row at a place by one of zeros. add() then fills it.
  void begin_row_at(size_t place, int64_t key) {
    rows_[place] = {key, index_.size(), 0};
    open_ = place;
  }
  // Appends an element to the row that was begun last. The indices of a row ascend.
  void add(int32_t index, T value) {
    index_.push_back(index);
    value_.push_back(value);
    ++rows_[open_].count;
  }
  // Removes the last row, which begin_row() has begun.
  void pop_row() {
    index_.resize(rows_.back().begin);
    value_.resize(rows_.back().begin);
    rows_.pop_back();
  }

 private:
  struct Place {
    int64_t key = 0;
    size_t begin = 0;  // in index_ and value_
    size_t count = 0;
  };

  std::vector<Place> rows_;
  std::vector<int32_t> index_;
  std::vector<T> value_;
  size_t open_ = 0;  // the row that was begun last
};
// A batch of rows of counts.
using RowBatch = BasicRowBatch<int32_t>;

// Returns a + b, which is the element `index` of a row. Errors: Error(kNumeric) if an integer overflows, or
// if the sum is not finite.
template <typename T>
T row_sum(T a, T b, int64_t key, int32_t index);

// Appends a delta to `out` as a row with ascending indices and without zeros. Changes of equal indices are
// added up. Appends nothing if nothing is left. Errors: ConfigError if the delta does not fit the width;
// Error(kNumeric) as row_sum().
template <typename T>
void append_delta(const BasicRowDelta<T>& delta, int32_t width, BasicRowBatch<T>& out);

}  // namespace starling
