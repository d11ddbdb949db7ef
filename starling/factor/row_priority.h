// RowPriority chooses the rows of W that an epoch of the rotation updates, by their expected progress, as
// STRADS chooses what it updates (Lee et al., "On model parallelization and scheduling strategies for
// distributed machine learning", NIPS 2014). While H is fixed, no row of W depends on another. So any rows
// can be chosen together, without a dependency check.
//
// The expected progress of a row is the length of its change in the last epoch that chose it. Its priority is
//
//   c_i = ‖δw_i‖ + η,    η = ε / (1 − ε) · Σ_k ‖δw_k‖ / m
//
// over the m rows of a rank, with ε = kRowExploration. An epoch draws rows without replacement, each in
// proportion to the priorities of the rows that are left. With u_i uniform in (0, 1], these are the rows with
// the least −log(u_i) / c_i (Efraimidis, Spirakis, "Weighted random sampling with a reservoir", 2006).
#pragma once

#include <cstdint>
#include <span>

#include "starling/factor/factor_sgd.h"

namespace starling {

// The share ε of draws that are uniform.
constexpr double kRowExploration = 0.1;

// Sets chosen[i] to 1 for `count` rows of a rank, and to 0 for all others. progress: ‖δw_i‖ of each row, at
// least 0 and not NaN. If no row has any, the draw is uniform. first: the index of the rank's first row in W.
// The draw is a function of (seed, epoch, row) and the progress. The budget counts 16 bytes per row for the
// time of the call. Errors: Error(kMemory).
void draw_rows(int64_t count, uint64_t seed, int64_t epoch, int64_t first, std::span<const double> progress,
               std::span<uint8_t> chosen, MemoryBudget& budget);

// The rows of one rank.
template <typename T>
class RowPriority {
 public:
  // share: the share of the rows that an epoch updates, above 0. With a share of 1 all rows are updated, and
  // nothing is kept. w: the rows of this rank. The budget counts the memory: a copy of W, 9 bytes per row,
  // and 16 more while rows are drawn. Errors: Error(kMemory).
  RowPriority(double share, const FactorBlock<T>& w, MemoryBudget& budget);

  // Chooses the rows of an epoch. The first epoch updates all rows, because none has shown its progress.
  void begin_epoch(uint64_t seed, int64_t epoch, const FactorBlock<T>& w);
  // Notes the progress of the rows that the epoch chose.
  void end_epoch(const FactorBlock<T>& w);

  // Returns a number per row of this rank: 1 for the rows of the epoch. Empty: all rows.
  std::span<const uint8_t> chosen() const { return {chosen_.data(), chosen_.size()}; }
  // Returns the number of rows of the epoch.
  int64_t count() const { return count_; }
  // ‖δw_i‖ of each row, for checkpoints. Empty with a share of 1.
  Counted<double>& progress() { return progress_; }

 private:
  const double share_;
  const int64_t rows_;
  int64_t count_;
  MemoryBudget& budget_;
  Counted<T> before_;  // W at the beginning of the epoch
  Counted<double> progress_;
  Counted<uint8_t> chosen_;
};

}  // namespace starling
