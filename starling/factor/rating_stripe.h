// The known entries of one rank's rows, sorted by column block; those for testing behind those for training in each block.
#pragma once

#include <span>

#include "starling/factor/factor_sgd.h"

namespace starling {

class RatingStripe {
 public:
  // Reads the source twice and keeps what lies in row part `index` of `parts`, the columns cut into `blocks` parts. Errors: those of
  // the source; Error(kMemory) where it does not fit the budget.
  RatingStripe(const RatingSource& source, int parts, int index, int blocks, const FactorizeOptions& options,
               MemoryBudget& budget);

  Span rows() const { return rows_; }
  std::span<const Rating> training(int block) const { return part(2 * block); }
  std::span<const Rating> testing(int block) const { return part(2 * block + 1); }
  int64_t training_count() const { return training_; }
  int64_t testing_count() const { return static_cast<int64_t>(entries_.size()) - training_; }

 private:
  std::span<const Rating> part(int k) const {
    return {entries_.data() + begin_[k], entries_.data() + begin_[k + 1]};
  }

  Span rows_;
  int64_t training_ = 0;
  Counted<size_t> begin_;  // of training and testing entries of each block, and the end
  Counted<Rating> entries_;
};

}  // namespace starling
