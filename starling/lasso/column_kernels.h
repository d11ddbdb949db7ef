// The loops over samples of a sparse regression. Each sum is taken in one fixed order on every processor, so
// a result depends on the numbers alone.
#pragma once

#include <cstdint>
#include <span>

namespace starling {

// Returns Σ a_i b_i over `count` numbers.
double dot_product(const double* a, const double* b, int64_t count);
// Sets out[k] to the dot product of `a` with each column, with the bits of dot_product(). The loads of `a`
// are shared by several columns.
void dot_products(const double* a, std::span<const double* const> columns, int64_t count, double* out);
// Returns Σ (a_i − b_i)² over `count` numbers.
double square_of_difference(const double* a, const double* b, int64_t count);
// Sets y_i ← y_i + factor · x_i for `count` numbers.
void add_multiple(double factor, const double* x, double* y, int64_t count);

// Returns S(z, t) = sign(z) max(|z| − t, 0), the minimizer of ½ (x − z)² + t |x|.
inline double soft_threshold(double z, double t) {
  if (z > t) return z - t;
  if (z < -t) return z + t;
  return 0;
}

}  // namespace starling
