// Matrix factorization V ≈ W·H by stochastic gradient descent. The loss of one known entry is
//
//   ½ (v_ij − w_i·h_j)² + λ/2 (‖w_i‖² + ‖h_j‖²)
//
// A step on this entry, with e = v_ij − w_i·h_j, reads the old values of both rows:
//
//   w_i ← w_i + η (e h_j − λ w_i),   h_j ← h_j + η (e w_i − λ h_j)
//
// W has a row of k numbers for each row of V, and H has one for each column. A rank holds blocks of both.
#pragma once

#include <cstdint>
#include <span>

#include "starling/factor/memory_budget.h"
#include "starling/factor/ratings.h"

namespace starling {

// The settings of a factorization. They are equal on all ranks.
struct FactorizeOptions {
  int64_t factors = 16;     // k
  int64_t epochs = 10;      // visits of every known entry
  double lr = 0.01;         // η of the first epoch
  double lr_decay = 0.95;   // η is multiplied by this after each epoch
  double l2 = 0.02;         // λ
  double test_share = 0.1;  // fraction of the known entries that is kept for testing
  double row_share = 1;     // share of the rows that an epoch of the rotation updates (row_priority.h)
  uint64_t seed = 0;
};

// A range of rows or columns.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  // Returns the number of rows or columns.
  int64_t count() const { return end - begin; }
};
// Returns part `index` of `count` items that are cut into `parts` ranges of sizes that differ by at most one.
Span part_of(int64_t count, int parts, int index);
// Returns the part that holds `item`.
int part_holding(int64_t count, int parts, int64_t item);

// VisitOrder is the order in which an epoch visits `count` entries: (start + t · stride) mod count for t = 0,
// 1, …. The key determines start and stride, and stride has no common divisor with count. The order is
// therefore a permutation that needs no table.
class VisitOrder {
 public:
  VisitOrder(size_t count, uint64_t key);
  // Returns the t-th entry.
  size_t operator[](size_t t) const { return (start_ + t * stride_) % count_; }

 private:
  size_t count_, start_ = 0, stride_ = 1;
};
// Returns the key for the entries of row block `row_block` and column block `column_block` in an epoch.
uint64_t visit_key(uint64_t seed, int64_t epoch, int row_block, int column_block);

// Rows [range.begin, range.end) of a factor.
template <typename T>
struct FactorBlock {
  // room: the number of rows to allocate. A range that rotates changes its size by one row.
  FactorBlock(Span range, int64_t room, int64_t factors, MemoryBudget& budget);
  // Sets the start values, which lie within 10 % of √(|mean|/k). Apart from this value, each number depends
  // only on the seed, the factor (`which`), its row and its column.
  void start(uint64_t seed, int which, double mean);
  // Returns the k numbers of row `index` of the whole factor.
  T* row(uint32_t index) { return values.data() + (index - range.begin) * factors; }
  // Returns the k numbers of row `index` of the whole factor.
  const T* row(uint32_t index) const { return values.data() + (index - range.begin) * factors; }
  // Returns the number of values.
  size_t size() const { return static_cast<size_t>(range.count() * factors); }

  Span range;
  int64_t factors;
  Counted<T> values;
};

// What a pass over entries gives.
struct SgdPass {
  double squared = 0;  // the sum of e², each computed before its step
  int64_t steps = 0;
};
// Makes one step on each entry in [begin, end) of the order. chosen: a number per row of w, 0 for a row whose
// entries are left out. Empty: all rows.
template <typename T>
SgdPass sgd_pass(std::span<const Rating> entries, const VisitOrder& order, size_t begin, size_t end,
                 double lr, double l2, FactorBlock<T>& w, FactorBlock<T>& h,
                 std::span<const uint8_t> chosen = {});
// Returns Σ e² over the entries.
template <typename T>
double squared_error(std::span<const Rating> entries, const FactorBlock<T>& w, const FactorBlock<T>& h);

}  // namespace starling
