#include "starling/factor/rating_stripe.h"

#include <bit>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"

namespace starling {
namespace {

[[noreturn]] void refuse_change() {
  throw DataError("the ratings changed while they were read; start again when no program writes to them");
}

}  // namespace

RatingStripe::RatingStripe(const RatingSource& source, int parts, int index, int blocks,
                           const FactorizeOptions& options, MemoryBudget& budget)
    : rows_(part_of(source.rows(), parts, index)),
      begin_(static_cast<size_t>(2 * blocks) + 1, 0, CountedAllocator<size_t>(budget)),
      entries_(CountedAllocator<Rating>(budget)) {
  budget.take(kRatingsAtOnce * sizeof(Rating));  // the piece that the source holds
  const auto each = [&](const auto& act) {
    source.visit([&](std::span<const Rating> piece) {
      for (const Rating& rating : piece) {
        if (rating.row < rows_.begin || rating.row >= rows_.end) continue;
        if (rating.column >= source.columns()) refuse_change();
        const bool test = is_test_rating(rating, options.test_share, options.seed);
        act(rating, 2 * part_holding(source.columns(), blocks, rating.column) + (test ? 1 : 0));
      }
    });
  };
  each([&](const Rating&, int k) { ++begin_[k + 1]; });
  for (size_t k = 1; k < begin_.size(); ++k) {
    if (k % 2 == 1) training_ += static_cast<int64_t>(begin_[k]);
    begin_[k] += begin_[k - 1];
  }
  entries_.resize(begin_.back());
  Counted<size_t> next = begin_;
  each([&](const Rating& rating, int k) {
    if (next[k] == begin_[k + 1]) refuse_change();
    entries_[next[k]++] = rating;
  });
  for (size_t k = 0; k + 1 < begin_.size(); ++k) {
    if (next[k] != begin_[k + 1]) refuse_change();
  }
  budget.give(kRatingsAtOnce * sizeof(Rating));
}

uint64_t RatingStripe::hash() const {
  uint64_t sum = 0;
  for (const Rating& rating : entries_)
    sum += key_of(rating.row, rating.column, std::bit_cast<uint32_t>(rating.value));
  return sum;
}

}  // namespace starling
