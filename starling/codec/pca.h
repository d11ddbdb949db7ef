// lowrank as the seed has it: the principal components of a matrix of weights or of their change, by a truncated singular
// value decomposition (without centring), found by subspace iteration (Golub, Van Loan, "Matrix computations", 8.2.4):
//
//   Q random;  repeat:  P = orth(M Q),  Q = M^T P,  (Q = orth(Q) before the next M Q);  message P, Q      (low_rank.h: bytes)
//
// P Q^T = P P^T M is M projected on the subspace of P: the best approximation of that rank once P spans the first r left
// singular vectors. Each iteration shrinks the distance to them by (s_{r+1} / s_r)². No state: equal input gives equal bytes.
#pragma once

#include "starling/codec/low_rank.h"

namespace starling {

class PcaCodec : public LowRankCodec {
 public:
  PcaCodec(const std::vector<TensorShape>& shapes, int rank, int iterations)
      : LowRankCodec(shapes, rank), iterations_(iterations) {}

 protected:
  void factorise(size_t part, const float* matrix, float* p, float* q) override;

 private:
  int iterations_;
};

}  // namespace starling
