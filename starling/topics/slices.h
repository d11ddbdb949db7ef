// Slices of the vocabulary. A rank samples one slice after another, so that it holds the rows of two slices
// only: the present one, and the next one, which it fetches ahead.
//
// Rank r of p begins with slice r S / p of S, and goes on cyclically. With S ≥ 2 p, no two ranks work on a
// slice at a time, and a row that a rank fetches ahead has all changes of earlier ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace starling {

// The words of a slice.
struct WordSlice {
  int32_t begin = 0;
  int32_t end = 0;
};

// Returns the most bytes of a row of a word with so many tokens: pairs of an index and a count.
constexpr uint64_t most_row_memory(int64_t tokens, int32_t topics) {
  return 8 * static_cast<uint64_t>(tokens < topics ? tokens : topics);
}

// Cuts the vocabulary into slices with about equal numbers of tokens. tokens: of each word in the corpus.
// slices: at least so many; 0: 1 slice for one rank, and 4 for each of several. most_bytes: the rows of a
// slice take at most so many bytes; 0: no limit. The number of slices is a multiple of `ranks`, and at least
// twice as large if there are several. A slice may be empty. Errors: ConfigError if a single row is larger
// than the limit.
std::vector<WordSlice> cut_words(std::span<const int64_t> tokens, int32_t topics, int ranks, int64_t slices,
                                 uint64_t most_bytes);

// Returns the number of the slice that a rank samples in a step.
constexpr size_t slice_of_step(size_t step, int rank, int ranks, size_t slices) {
  return (step + static_cast<size_t>(rank) * slices / static_cast<size_t>(ranks)) % slices;
}

}  // namespace starling
