// Sums of squares for gradient clipping: |scale · (gradients[0] + gradients[1] + …)|², sources added in their
// order in G's arithmetic type, squares added in double.
//
// The range is cut into chunks of kSquareChunk elements; each chunk has one partial sum and the partials are
// added in order. Threads that fill disjoint chunks and one that folds them give the same bits as one thread
// that does it all.
#pragma once

#include <cstddef>

#include "starling/optim/bf16.h"
#include "starling/optim/isa.h"

namespace starling {

constexpr size_t kSquareChunk = size_t{1} << 16;

constexpr size_t square_chunks(size_t count) {
  return (count + kSquareChunk - 1) / kSquareChunk;
}

// partials[c] for every chunk c in [first, last), unscaled. gradients: `sources` buffers of `count` elements.
// G: float, double or Bf16 (added in fp32).
template <typename G>
void squares_of_chunks(const G* const* gradients, int sources, size_t count, size_t first, size_t last,
                       double* partials, Isa isa = best_isa());

// The whole sum in one thread, times scale².
template <typename G>
double sum_of_squares(const G* const* gradients, int sources, double scale, size_t count,
                      Isa isa = best_isa());

template <typename T>
double sum_of_squares(const T* x, size_t count) {
  return sum_of_squares<T>(&x, 1, 1.0, count);
}

}  // namespace starling
