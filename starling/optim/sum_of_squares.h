// Sums of squares for gradient clipping: |scale · (gradients[0] + gradients[1] + …)|².
//
// The sources are added in their order, in G's arithmetic type. The squares are added in double. The range is
// cut into chunks of kSquareChunk elements. Each chunk has one partial sum, and the partial sums are added in
// order. The result is therefore bit-identical for one thread and for several threads that compute disjoint
// chunks.
#pragma once

#include <cstddef>

#include "starling/base/bfloat16.h"
#include "starling/base/isa.h"

namespace starling {

// Elements in a chunk.
constexpr size_t kSquareChunk = size_t{1} << 16;

// Returns the number of chunks of `count` elements.
constexpr size_t square_chunks(size_t count) {
  return (count + kSquareChunk - 1) / kSquareChunk;
}

// Computes partials[c], unscaled, for every chunk c in [first, last). gradients: `sources` buffers of `count`
// elements. G: float, double or Bf16 (added in fp32).
template <typename G>
void squares_of_chunks(const G* const* gradients, int sources, size_t count, size_t first, size_t last,
                       double* partials, Isa isa = best_isa());

// Returns the whole sum, times scale². It runs on the calling thread.
template <typename G>
double sum_of_squares(const G* const* gradients, int sources, double scale, size_t count,
                      Isa isa = best_isa());

// Returns the sum of the squares of `count` elements.
template <typename T>
double sum_of_squares(const T* x, size_t count) {
  return sum_of_squares<T>(&x, 1, 1.0, count);
}

}  // namespace starling
