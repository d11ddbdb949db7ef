// StoredRow is a row in the memory of a shard. A sparse row has pairs of an index and a value that is not
// zero. A dense row has all elements. A row becomes dense when the pairs would take more bytes, and sparse
// again when they would take less than half the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "starling/server/row_batch.h"

namespace starling {

// Memory that StoredRow::add() uses for intermediate results, for all rows of a table.
template <typename T>
struct RowScratch {
  std::vector<int32_t> index;
  std::vector<T> value;
};

// T: int32_t, int64_t, float or double. Not thread-safe.
template <typename T>
class StoredRow {
 public:
  // Adds changes. `change` has ascending indices below the width and no zeros. Elements that become zero are
  // deleted. Errors: Error(kNumeric) as row_sum(); the row may then have some of the changes.
  void add(const BasicRow<T>& change, int32_t width, RowScratch<T>& scratch);
  // Returns the row without its zeros. The spans are valid until the row or `scratch` changes.
  BasicRow<T> view(int64_t key, RowScratch<T>& scratch) const;

  // Returns the number of elements that are not zero.
  size_t count() const { return count_; }
  // Returns whether the row is dense.
  bool dense() const { return dense_; }
  // Returns the bytes of the allocated memory.
  size_t bytes() const { return index_.capacity() * sizeof(int32_t) + value_.capacity() * sizeof(T); }

 private:
  bool add_in_place(const BasicRow<T>& change);
  void merge(const BasicRow<T>& change, RowScratch<T>& scratch) const;
  void add_dense(const BasicRow<T>& change);
  void keep(const RowScratch<T>& scratch, int32_t width);

  bool dense_ = false;
  uint32_t count_ = 0;
  std::vector<int32_t> index_;  // of a sparse row, ascending
  std::vector<T> value_;
};

}  // namespace starling
