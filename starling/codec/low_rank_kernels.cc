#include "starling/codec/low_rank_kernels.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "starling/base/keyed_random.h"
#include "starling/codec/kernel.h"

namespace starling {
namespace {

constexpr size_t kLanes = 16;  // independent sums, added in an order that does not depend on the vector unit

STARLING_INLINE float dot(const float* a, const float* b, size_t n) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t k = 0; k < kLanes; ++k) lanes[k] += a[i + k] * b[i + k];
  for (size_t k = 0; i < n; ++i, ++k) lanes[k] += a[i] * b[i];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

STARLING_INLINE void add_scaled(float scale, const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] += scale * x[i];
}

// Gram-Schmidt computes its sums in fp64. They are few, and the quality of P depends on them.
double inner(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Subtracts from vector k its components along the first k vectors. Returns the remaining norm.
double project_out(float* vectors, size_t length, int k) {
  float* v = vectors + static_cast<size_t>(k) * length;
  for (int j = 0; j < k; ++j) {
    const float* u = vectors + static_cast<size_t>(j) * length;
    const auto along = static_cast<float>(inner(u, v, length));
    for (size_t i = 0; i < length; ++i) v[i] -= along * u[i];
  }
  return std::sqrt(inner(v, v, length));
}

// Makes vector k orthogonal to the first k vectors and scales it to norm 1. Returns false if only rounding
// would remain of it.
bool normalize(float* vectors, size_t length, int k) {
  float* v = vectors + static_cast<size_t>(k) * length;
  const double before = std::sqrt(inner(v, v, length));
  if (!std::isfinite(before) || before == 0) return false;
  for (size_t i = 0; i < length; ++i) v[i] = static_cast<float>(v[i] / before);
  const double left = project_out(vectors, length, k);
  if (!(left > 1e-5)) return false;
  for (size_t i = 0; i < length; ++i) v[i] = static_cast<float>(v[i] / left);
  const double again = project_out(vectors, length, k);
  for (size_t i = 0; i < length; ++i) v[i] = static_cast<float>(v[i] / again);
  return true;
}

}  // namespace

void multiply(const MatrixView& m, const float* q, int rank, float* p) {
  on_best_isa([&]() STARLING_KERNEL {
    for (size_t i = 0; i < m.rows; ++i)
      for (size_t k = 0; k < static_cast<size_t>(rank); ++k)
        p[k * m.rows + i] = dot(m.data + i * m.cols, q + k * m.cols, m.cols);
  });
}

void multiply_transposed(const MatrixView& m, const float* p, int rank, float* q) {
  std::fill(q, q + static_cast<size_t>(rank) * m.cols, 0.0f);
  on_best_isa([&]() STARLING_KERNEL {
    for (size_t i = 0; i < m.rows; ++i)
      for (size_t k = 0; k < static_cast<size_t>(rank); ++k)
        add_scaled(p[k * m.rows + i], m.data + i * m.cols, q + k * m.cols, m.cols);
  });
}

void add_product(const float* p, const float* q, int rank, float scale, float* out, size_t rows,
                 size_t cols) {
  on_best_isa([&]() STARLING_KERNEL {
    for (size_t i = 0; i < rows; ++i)
      for (size_t k = 0; k < static_cast<size_t>(rank); ++k)
        add_scaled(scale * p[k * rows + i], q + k * cols, out + i * cols, cols);
  });
}

void start_vectors(float* vectors, size_t length, int rank, uint64_t key) {
  for (size_t i = 0; i < static_cast<size_t>(rank) * length; ++i) {
    const uint64_t bits = mix64(mix64(key + kGolden) + i + kGolden) >> 40;  // 24 bits
    vectors[i] = (static_cast<float>(bits) + 0.5f) * 0x1p-23f - 1.0f;
  }
}

void orthonormalize(float* vectors, size_t length, int rank, uint64_t key) {
  STARLING_CHECK(rank >= 0 && static_cast<size_t>(rank) <= length);
  for (int k = 0; k < rank; ++k) {
    for (uint64_t attempt = 0; !normalize(vectors, length, k); ++attempt) {
      STARLING_CHECK(attempt < 100, "no independent vector {} of {} elements", k, length);
      start_vectors(vectors + static_cast<size_t>(k) * length, length, 1, mix64(key + attempt + kGolden) + k);
    }
  }
}

}  // namespace starling
