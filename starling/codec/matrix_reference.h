// Naive matrices in fp64 for the tests of lowrank, and PowerSGD as its paper states it.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "starling/codec/codec_reference.h"

namespace starling {

// A row-major matrix in fp64.
struct Matrix {
  size_t rows, cols;
  std::vector<double> at;
  Matrix(size_t r, size_t c) : rows(r), cols(c), at(r * c) {}
  double& operator()(size_t i, size_t j) { return at[i * cols + j]; }
  double operator()(size_t i, size_t j) const { return at[i * cols + j]; }
};

// Returns the first rows · cols values as a matrix.
inline Matrix matrix_of(const Values& x, size_t rows, size_t cols) {
  Matrix m(rows, cols);
  for (size_t i = 0; i < rows * cols; ++i) m.at[i] = x[i];
  return m;
}

// Returns the transpose.
inline Matrix transposed(const Matrix& a) {
  Matrix out(a.cols, a.rows);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t j = 0; j < a.cols; ++j) out(j, i) = a(i, j);
  return out;
}

// Returns a · b.
inline Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.cols);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t j = 0; j < b.cols; ++j)
      for (size_t k = 0; k < a.cols; ++k) out(i, j) += a(i, k) * b(k, j);
  return out;
}

// Orthonormalizes the columns by classical Gram-Schmidt.
inline Matrix orthonormal_columns(Matrix a) {
  for (size_t k = 0; k < a.cols; ++k) {
    for (size_t j = 0; j < k; ++j) {
      double along = 0;
      for (size_t i = 0; i < a.rows; ++i) along += a(i, j) * a(i, k);
      for (size_t i = 0; i < a.rows; ++i) a(i, k) -= along * a(i, j);
    }
    double square = 0;
    for (size_t i = 0; i < a.rows; ++i) square += a(i, k) * a(i, k);
    for (size_t i = 0; i < a.rows; ++i) a(i, k) /= std::sqrt(square);
  }
  return a;
}

// Algorithms 1 and 2 of the PowerSGD paper for one matrix and all ranks.
struct PaperPowerSgd {
  Matrix q;
  std::vector<Matrix> residual;
  // Executes one step with the gradient of each rank and returns the decoded mean.
  Matrix step(const std::vector<Matrix>& gradients) {
    q = orthonormal_columns(q);
    std::vector<Matrix> m;
    Matrix p(gradients[0].rows, q.cols), next(q.rows, q.cols);
    for (size_t r = 0; r < gradients.size(); ++r) {
      m.push_back(gradients[r]);
      for (size_t i = 0; i < m[r].at.size(); ++i) m[r].at[i] += residual[r].at[i];
      const Matrix own = product(m[r], q);
      for (size_t i = 0; i < p.at.size(); ++i) p.at[i] += own.at[i] / static_cast<double>(gradients.size());
    }
    p = orthonormal_columns(p);
    for (size_t r = 0; r < m.size(); ++r) {
      const Matrix own = product(transposed(m[r]), p), sent = product(p, transposed(own));
      for (size_t i = 0; i < sent.at.size(); ++i) residual[r].at[i] = m[r].at[i] - sent.at[i];
      for (size_t i = 0; i < own.at.size(); ++i) next.at[i] += own.at[i] / static_cast<double>(m.size());
    }
    q = next;
    return product(p, transposed(q));
  }
};

}  // namespace starling
