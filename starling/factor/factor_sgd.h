// Matrix factorisation V ≈ W·H by stochastic gradient descent: the loss of one known entry is
//   ½ (v_ij − w_i·h_j)² + λ/2 (‖w_i‖² + ‖h_j‖²),   and a step on it, e = v_ij − w_i·h_j:
//   w_i ← w_i + η (e h_j − λ w_i),   h_j ← h_j + η (e w_i − λ h_j)   (both with the old values).
// W has a row of k numbers for each row of V, H one for each column; a rank holds blocks of both.
#pragma once

#include <cstdint>
#include <span>

#include "starling/factor/memory_budget.h"
#include "starling/factor/ratings.h"

namespace starling {

struct FactorizeOptions {
  int64_t factors = 16;     // k
  int64_t epochs = 10;      // visits of every known entry
  double lr = 0.01;         // η of the first epoch
  double lr_decay = 0.95;   // η is multiplied by this after each epoch
  double l2 = 0.02;         // λ
  double test_share = 0.1;  // of the known entries, kept for testing
  uint64_t seed = 0;
};

// Part `index` of `count` things cut into `parts` ranges, as equal as can be.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};
Span part_of(int64_t count, int parts, int index);
// The part that holds `item`.
int part_holding(int64_t count, int parts, int64_t item);

// The order in which `count` entries are visited in an epoch: (start + t · stride) mod count for t = 0, 1, …, start and stride from
// the key, stride without a common divisor with count: a permutation without a table.
class VisitOrder {
 public:
  VisitOrder(size_t count, uint64_t key);
  size_t operator[](size_t t) const { return (start_ + t * stride_) % count_; }

 private:
  size_t count_, start_ = 0, stride_ = 1;
};
// The key of the entries of row block r and column block c in an epoch.
uint64_t visit_key(uint64_t seed, int64_t epoch, int row_block, int column_block);

// Rows [range.begin, range.end) of a factor.
template <typename T>
struct FactorBlock {
  // room: rows that the block may come to hold (a range that rotates changes by one).
  FactorBlock(Span range, int64_t room, int64_t factors, MemoryBudget& budget);
  // The start value of every number is a function of (seed, which factor, row, column): √(mean/k) and a tenth of it either way.
  void start(uint64_t seed, int which, double mean);
  T* row(uint32_t index) { return values.data() + (index - range.begin) * factors; }
  const T* row(uint32_t index) const { return values.data() + (index - range.begin) * factors; }
  size_t size() const { return static_cast<size_t>(range.count() * factors); }

  Span range;
  int64_t factors;
  Counted<T> values;
};

// One step on each entry, in the order given. Returns the sum of e², each before its step.
template <typename T>
double sgd_pass(std::span<const Rating> entries, const VisitOrder& order, size_t begin, size_t end, double lr,
                double l2, FactorBlock<T>& w, FactorBlock<T>& h);
// Σ e² over the entries.
template <typename T>
double squared_error(std::span<const Rating> entries, const FactorBlock<T>& w, const FactorBlock<T>& h);

}  // namespace starling
