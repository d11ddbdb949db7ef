#include "starling/codec/pca.h"

#include "starling/codec/low_rank_kernels.h"

namespace starling {

void PcaCodec::factorize(size_t index, const float* matrix, float* p, float* q) {
  const LowRankPart& part = parts()[index];
  const MatrixView m{matrix, part.rows, part.cols};
  start_vectors(q, part.cols, part.rank, part.key);
  for (int i = 0; i < iterations_; ++i) {
    orthonormalize(q, part.cols, part.rank, part.key);
    multiply(m, q, part.rank, p);
    orthonormalize(p, part.rows, part.rank, part.key);
    multiply_transposed(m, p, part.rank, q);
  }
}

}  // namespace starling
