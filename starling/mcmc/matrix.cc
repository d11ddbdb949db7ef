#include "starling/mcmc/matrix.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace starling {
namespace {

constexpr int kMostSweeps = 100;  // Jacobi's method needs about ten

// Rotates rows and columns p and q so that the element (p, q) becomes 0.
void rotate(SquareMatrix& a, SquareMatrix& q_matrix, size_t p, size_t q) {
  if (a(p, q) == 0) return;
  const double theta = (a(q, q) - a(p, p)) / (2 * a(p, q));
  const double t = std::copysign(1.0, theta) / (std::abs(theta) + std::hypot(theta, 1.0));
  const double c = 1 / std::hypot(t, 1.0), s = t * c;
  for (size_t k = 0; k < a.size; ++k) {
    const double left = a(k, p), right = a(k, q);
    a(k, p) = c * left - s * right;
    a(k, q) = s * left + c * right;
  }
  for (size_t k = 0; k < a.size; ++k) {
    const double left = a(p, k), right = a(q, k);
    a(p, k) = c * left - s * right;
    a(q, k) = s * left + c * right;
  }
  for (size_t k = 0; k < a.size; ++k) {
    const double left = q_matrix(k, p), right = q_matrix(k, q);
    q_matrix(k, p) = c * left - s * right;
    q_matrix(k, q) = s * left + c * right;
  }
}

}  // namespace

std::optional<SquareMatrix> cholesky(const SquareMatrix& a) {
  SquareMatrix lower(a.size);
  for (size_t i = 0; i < a.size; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = a(i, j);
      for (size_t k = 0; k < j; ++k) sum -= lower(i, k) * lower(j, k);
      if (i != j) {
        lower(i, j) = sum / lower(j, j);
        continue;
      }
      // Rounding leaves some 1e-16 of a(i, i) of a matrix that is singular.
      if (!(sum > 1e-13 * a(i, i)) || !std::isfinite(sum)) return std::nullopt;
      lower(i, i) = std::sqrt(sum);
    }
  }
  return lower;
}

std::vector<double> times(const SquareMatrix& a, std::span<const double> x) {
  std::vector<double> y(a.size, 0.0);
  for (size_t i = 0; i < a.size; ++i)
    for (size_t j = 0; j < a.size; ++j) y[i] += a(i, j) * x[j];
  return y;
}

std::vector<double> solve_lower(const SquareMatrix& lower, std::span<const double> b) {
  std::vector<double> x(b.begin(), b.end());
  for (size_t i = 0; i < lower.size; ++i) {
    for (size_t k = 0; k < i; ++k) x[i] -= lower(i, k) * x[k];
    x[i] /= lower(i, i);
  }
  return x;
}

SquareMatrix inverse_of_product(const SquareMatrix& lower) {
  const size_t n = lower.size;
  std::vector<std::vector<double>> columns;  // of L⁻¹
  for (size_t j = 0; j < n; ++j) {
    std::vector<double> unit(n, 0.0);
    unit[j] = 1;
    columns.push_back(solve_lower(lower, unit));
  }
  SquareMatrix inverse(n);  // L⁻ᵀ L⁻¹
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (size_t k = i; k < n; ++k) sum += columns[i][k] * columns[j][k];
      inverse(i, j) = inverse(j, i) = sum;
    }
  }
  return inverse;
}

Eigenvectors eigen_of(SquareMatrix a) {
  const size_t n = a.size;
  Eigenvectors eigen;
  eigen.vectors = SquareMatrix(n);
  for (size_t i = 0; i < n; ++i) eigen.vectors(i, i) = 1;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double off = 0, diagonal = 0;
    for (size_t i = 0; i < n; ++i) {
      diagonal += a(i, i) * a(i, i);
      for (size_t j = 0; j < i; ++j) off += a(i, j) * a(i, j);
    }
    if (off <= 1e-30 * diagonal) break;
    for (size_t p = 0; p + 1 < n; ++p)
      for (size_t q = p + 1; q < n; ++q) rotate(a, eigen.vectors, p, q);
  }
  for (size_t i = 0; i < n; ++i) eigen.values.push_back(a(i, i));
  return eigen;
}

}  // namespace starling
