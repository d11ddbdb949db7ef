// Small dense symmetric matrices: covariances and their inverses.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace starling {

// SquareMatrix is a square matrix, row by row.
struct SquareMatrix {
  size_t size = 0;             // rows, and columns
  std::vector<double> values;  // size · size elements

  SquareMatrix() = default;
  // A matrix of zeros.
  explicit SquareMatrix(size_t rows) : size(rows), values(rows * rows, 0.0) {}
  // The element of a row and a column.
  double& operator()(size_t row, size_t column) { return values[row * size + column]; }
  // The element of a row and a column.
  double operator()(size_t row, size_t column) const { return values[row * size + column]; }
};

// Returns the lower triangle L with A = L·Lᵀ, or nothing if A is not positive definite. Elements above the
// diagonal of the result are 0. The function reads only the lower triangle of A.
std::optional<SquareMatrix> cholesky(const SquareMatrix& a);
// Returns A·x.
std::vector<double> times(const SquareMatrix& a, std::span<const double> x);
// Returns x with L·x = b, for a lower triangle.
std::vector<double> solve_lower(const SquareMatrix& lower, std::span<const double> b);
// Returns the inverse of A = L·Lᵀ.
SquareMatrix inverse_of_product(const SquareMatrix& lower);

// The eigenvalues of a symmetric matrix and its eigenvectors: A = Q·diag(values)·Qᵀ.
struct Eigenvectors {
  std::vector<double> values;  // in no order
  SquareMatrix vectors;        // Q: column k belongs to value k
};
// Returns the eigenvalues and eigenvectors of a symmetric matrix, by Jacobi's rotations.
Eigenvectors eigen_of(SquareMatrix a);

}  // namespace starling
