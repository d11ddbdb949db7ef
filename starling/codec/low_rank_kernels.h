// The linear algebra of low-rank codecs: a matrix M (rows × cols, row-major) and thin factors, stored as `rank` vectors one
// after another: P of `rows` elements each, Q of `cols` elements each; M ~ P Q^T.
#pragma once

#include <cstddef>
#include <cstdint>

namespace starling {

struct MatrixView {
  const float* data;
  size_t rows, cols;
};

// P = M Q.
void multiply(const MatrixView& m, const float* q, int rank, float* p);
// Q = M^T P.
void multiply_transposed(const MatrixView& m, const float* p, int rank, float* q);
// out += scale * P Q^T.
void add_product(const float* p, const float* q, int rank, float scale, float* out, size_t rows, size_t cols);

// `rank` vectors of numbers in (-1, 1), a function of key and place alone: where a power method starts.
void start_vectors(float* vectors, size_t length, int rank, uint64_t key);

// Modified Gram-Schmidt, each vector twice. rank <= length. A vector that depends on those before it (or is zero, or not
// finite) is replaced by one of start_vectors(key), so that the result is orthonormal whatever the input.
void orthonormalise(float* vectors, size_t length, int rank, uint64_t key);

}  // namespace starling
