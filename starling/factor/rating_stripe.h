// RatingStripe holds the known entries of one rank's rows, sorted by column block. In each block the entries
// for training come before those for testing.
#pragma once

#include <cstdint>
#include <span>

#include "starling/factor/factor_sgd.h"

namespace starling {

// The entries of one rank.
class RatingStripe {
 public:
  // Reads the source twice and keeps the entries in row part `index` of `parts`. The columns are cut into
  // `blocks` parts. Errors: those of the source; DataError if the source has other entries when it is read
  // again; Error(kMemory) if the entries do not fit the budget.
  RatingStripe(const RatingSource& source, int parts, int index, int blocks, const FactorizeOptions& options,
               MemoryBudget& budget);

  // Returns the rows of this rank.
  Span rows() const { return rows_; }
  // Returns the entries of a column block for training.
  std::span<const Rating> training(int block) const { return part(2 * block); }
  // Returns the entries of a column block for testing.
  std::span<const Rating> testing(int block) const { return part(2 * block + 1); }
  // Returns the number of entries for training in all blocks.
  int64_t training_count() const { return training_; }
  // Returns the number of entries for testing in all blocks.
  int64_t testing_count() const { return static_cast<int64_t>(entries_.size()) - training_; }
  // Returns a hash of this rank's entries. The sum over the ranks does not depend on the division into ranks.
  uint64_t hash() const;

 private:
  std::span<const Rating> part(int k) const {
    return {entries_.data() + begin_[k], entries_.data() + begin_[k + 1]};
  }

  Span rows_;
  int64_t training_ = 0;
  Counted<size_t> begin_;  // the first entry for training and for testing of each block, and the end
  Counted<Rating> entries_;
};

}  // namespace starling
