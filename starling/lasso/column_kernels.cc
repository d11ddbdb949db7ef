#include "starling/lasso/column_kernels.h"

#include "starling/base/isa_dispatch.h"

namespace starling {
namespace {

constexpr int kLanes = 8;     // independent sums
constexpr int kTogether = 4;  // columns that share the loads of `a`

// A vector of the compiler. From arrays of sums GCC 12 makes loops that shuffle more than they multiply.
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));

// Sets lanes to the kLanes numbers at `at`.
STARLING_INLINE void load(const double* at, Lanes& lanes) {
  __builtin_memcpy(&lanes, at, sizeof(lanes));
}

// Adds the lanes of a sum in a fixed order.
STARLING_INLINE double total_of(const Lanes& lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

STARLING_INLINE void one_product(const double* a, const double* b, int64_t count, double* out) {
  Lanes sum{}, x, y;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    load(a + i, x), load(b + i, y);
    sum += x * y;
  }
  double rest = 0;
  for (; i < count; ++i) rest += a[i] * b[i];
  *out = total_of(sum) + rest;
}

STARLING_INLINE void four_products(const double* a, const double* const* b, int64_t count, double* out) {
  static_assert(kTogether == 4);
  const double *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];
  Lanes sum0{}, sum1{}, sum2{}, sum3{}, x, y;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    load(a + i, x);
    load(b0 + i, y), sum0 += x * y;
    load(b1 + i, y), sum1 += x * y;
    load(b2 + i, y), sum2 += x * y;
    load(b3 + i, y), sum3 += x * y;
  }
  double rest[kTogether] = {};
  for (; i < count; ++i)
    for (int k = 0; k < kTogether; ++k) rest[k] += a[i] * b[k][i];
  out[0] = total_of(sum0) + rest[0], out[1] = total_of(sum1) + rest[1];
  out[2] = total_of(sum2) + rest[2], out[3] = total_of(sum3) + rest[3];
}

STARLING_INLINE void one_distance(const double* a, const double* b, int64_t count, double* out) {
  Lanes sum{}, x, y;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    load(a + i, x), load(b + i, y);
    x -= y;
    sum += x * x;
  }
  double rest = 0;
  for (; i < count; ++i) rest += (a[i] - b[i]) * (a[i] - b[i]);
  *out = total_of(sum) + rest;
}

}  // namespace

double dot_product(const double* a, const double* b, int64_t count) {
  double product = 0;
  dispatch(best_isa(), [&]() __attribute__((always_inline)) { one_product(a, b, count, &product); });
  return product;
}

void dot_products(const double* a, std::span<const double* const> columns, int64_t count, double* out) {
  dispatch(best_isa(), [&]() __attribute__((always_inline)) {
    size_t k = 0;
    for (; k + kTogether <= columns.size(); k += kTogether) four_products(a, &columns[k], count, out + k);
    for (; k < columns.size(); ++k) one_product(a, columns[k], count, out + k);
  });
}

double square_of_difference(const double* a, const double* b, int64_t count) {
  double square = 0;
  dispatch(best_isa(), [&]() __attribute__((always_inline)) { one_distance(a, b, count, &square); });
  return square;
}

void add_multiple(double factor, const double* x, double* y, int64_t count) {
  dispatch(best_isa(), [&]() __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; ++i) y[i] += factor * x[i];
  });
}

}  // namespace starling
