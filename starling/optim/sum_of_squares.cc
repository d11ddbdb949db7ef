#include "starling/optim/sum_of_squares.h"

#include <vector>

#include "starling/base/isa_dispatch.h"
#include "starling/optim/widen.h"

namespace starling {
namespace {

constexpr size_t kBlock = 1024;
constexpr size_t kLanes = 16;  // independent sums, so that additions do not depend on each other

template <typename G>
struct ChunkSquares {
  const G* const* gradients;
  int sources;
  size_t begin, end;
  double* result;

  STARLING_INLINE void operator()() const {
    double lanes[kLanes] = {};
    for (size_t at = begin; at < end; at += kBlock)
      add_block(at, end - at < kBlock ? end - at : kBlock, lanes);
    double sum = 0;
    for (size_t k = 0; k < kLanes; ++k) sum += lanes[k];
    *result = sum;
  }

  STARLING_INLINE void add_block(size_t at, size_t n, double* lanes) const {
    using T = decltype(widen(G{}));
    alignas(64) T sum[kBlock];
    const G* g = gradients[0] + at;
#pragma GCC ivdep
    for (size_t i = 0; i < n; ++i) sum[i] = widen(g[i]);
    for (int s = 1; s < sources; ++s) {
      g = gradients[s] + at;
#pragma GCC ivdep
      for (size_t i = 0; i < n; ++i) sum[i] = sum[i] + widen(g[i]);
    }
    double local[kLanes];
    for (size_t k = 0; k < kLanes; ++k) local[k] = lanes[k];
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (size_t k = 0; k < kLanes; ++k) {
        const double x = static_cast<double>(sum[i + k]);
        local[k] += x * x;
      }
    for (size_t k = 0; i < n; ++i, ++k) {
      const double x = static_cast<double>(sum[i]);
      local[k] += x * x;
    }
    for (size_t k = 0; k < kLanes; ++k) lanes[k] = local[k];
  }
};

}  // namespace

template <typename G>
void squares_of_chunks(const G* const* gradients, int sources, size_t count, size_t first, size_t last,
                       double* partials, Isa isa) {
  for (size_t c = first; c < last; ++c) {
    const size_t begin = c * kSquareChunk;
    const size_t end = count - begin < kSquareChunk ? count : begin + kSquareChunk;
    dispatch(isa, ChunkSquares<G>{gradients, sources, begin, end, partials + c});
  }
}

template <typename G>
double sum_of_squares(const G* const* gradients, int sources, double scale, size_t count, Isa isa) {
  std::vector<double> partials(square_chunks(count));
  squares_of_chunks(gradients, sources, count, 0, partials.size(), partials.data(), isa);
  double sum = 0;
  for (const double partial : partials) sum += partial;
  return sum * scale * scale;
}

template void squares_of_chunks(const float* const*, int, size_t, size_t, size_t, double*, Isa);
template void squares_of_chunks(const double* const*, int, size_t, size_t, size_t, double*, Isa);
template void squares_of_chunks(const Bf16* const*, int, size_t, size_t, size_t, double*, Isa);
template double sum_of_squares(const float* const*, int, double, size_t, Isa);
template double sum_of_squares(const double* const*, int, double, size_t, Isa);
template double sum_of_squares(const Bf16* const*, int, double, size_t, Isa);

}  // namespace starling
