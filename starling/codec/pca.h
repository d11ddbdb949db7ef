// PcaCodec is lowrank with form=pca: it sends the principal components of a matrix of weights or of their
// change. It computes a truncated singular value decomposition, without centering, by subspace iteration
// (Golub, Van Loan, "Matrix computations", 8.2.4):
//
//   Q random;  repeat:  P = orth(M Q),  Q = M^T P,  (Q = orth(Q) before the next M Q);  message: P, Q
//
// P Q^T = P P^T M is the projection of M onto the subspace of P. If P spans the first r left singular
// vectors, P Q^T is the best approximation of this rank. Each iteration reduces the distance to these vectors
// by the factor (s_{r+1} / s_r)². The codec has no state: equal input gives equal bytes.
#pragma once

#include <utility>

#include "starling/codec/low_rank.h"

namespace starling {

// Codec "lowrank:form=pca". The top of this header has the algorithm.
class PcaCodec : public LowRankCodec {
 public:
  // rank: columns of the factors. iterations: at least 1. values: as for LowRankCodec.
  PcaCodec(const std::vector<TensorShape>& shapes, int rank, int iterations,
           std::unique_ptr<Codec> values = nullptr)
      : LowRankCodec(shapes, rank, std::move(values)), iterations_(iterations) {}
  Combining combining() const override { return Combining::kCollected; }

 protected:
  void factorize(size_t part, const float* matrix, float* p, float* q) override;

 private:
  int iterations_;
};

}  // namespace starling
