// The linear algebra of the low-rank codecs: M ~ P Q^T. M is a row-major matrix of rows × cols. A factor is
// stored as `rank` vectors one after another: the vectors of P have `rows` elements, those of Q have `cols`
// elements.
#pragma once

#include <cstddef>
#include <cstdint>

namespace starling {

// A matrix in memory of the caller.
struct MatrixView {
  const float* data;
  size_t rows, cols;
};

// Computes P = M Q.
void multiply(const MatrixView& m, const float* q, int rank, float* p);
// Computes Q = M^T P.
void multiply_transposed(const MatrixView& m, const float* p, int rank, float* q);
// Computes out += scale * P Q^T.
void add_product(const float* p, const float* q, int rank, float scale, float* out, size_t rows, size_t cols);

// Fills `rank` vectors with the start values of a power method. The values lie in (-1, 1] and depend on the
// key and the position only.
void start_vectors(float* vectors, size_t length, int rank, uint64_t key);

// Orthonormalizes `rank` vectors by modified Gram-Schmidt, each vector twice. rank <= length. A vector that
// depends on earlier ones, is zero or is not finite is replaced by one of start_vectors(). The result is
// therefore orthonormal for every input.
void orthonormalize(float* vectors, size_t length, int rank, uint64_t key);

}  // namespace starling
