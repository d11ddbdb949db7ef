#include "starling/lasso/column_kernels.h"

#include "starling/base/isa_dispatch.h"

namespace starling {
namespace {

constexpr int kLanes = 8;     // independent sums, which the compiler keeps in vector registers
constexpr int kTogether = 4;  // columns that share the loads of `a`

// Adds the lanes of a sum in a fixed order.
STARLING_INLINE double total_of(const double* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

STARLING_INLINE void one_product(const double* a, const double* b, int64_t count, double* out) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  double rest = 0;
  for (; i < count; ++i) rest += a[i] * b[i];
  *out = total_of(lanes) + rest;
}

STARLING_INLINE void four_products(const double* a, const double* const* b, int64_t count, double* out) {
  double lanes[kTogether][kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int k = 0; k < kTogether; ++k)
      for (int lane = 0; lane < kLanes; ++lane) lanes[k][lane] += a[i + lane] * b[k][i + lane];
  double rest[kTogether] = {};
  for (; i < count; ++i)
    for (int k = 0; k < kTogether; ++k) rest[k] += a[i] * b[k][i];
  for (int k = 0; k < kTogether; ++k) out[k] = total_of(lanes[k]) + rest[k];
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
  dispatch(best_isa(), [&]() __attribute__((always_inline)) {
    double lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane)
        lanes[lane] += (a[i + lane] - b[i + lane]) * (a[i + lane] - b[i + lane]);
    double rest = 0;
    for (; i < count; ++i) rest += (a[i] - b[i]) * (a[i] - b[i]);
    square = total_of(lanes) + rest;
  });
  return square;
}

void add_multiple(double factor, const double* x, double* y, int64_t count) {
  dispatch(best_isa(), [&]() __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; ++i) y[i] += factor * x[i];
  });
}

}  // namespace starling
