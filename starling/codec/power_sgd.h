// lowrank for gradients: one step of subspace iteration a call, continued from the last call's Q, since the gradients of
// successive steps share directions. Vogels, Karimireddy, Jaggi: "PowerSGD: practical low-rank gradient compression for
// distributed optimization", NeurIPS 2019, algorithm 1, with Q orthonormalised before use as in the authors' code.
//
//   P_w = M_w Q,   P = orth(mean of P_w),   Q_w = M_w^T P,   Q = mean of Q_w,   the mean of M_w ~ P Q^T
//   error feedback (algorithm 2): e_w = M_w - P Q_w^T
//
// Both means are all-reduces of thin matrices (average()); tensors that are not factorised join the first one. encode() is
// the same for one rank: the message of a push to a server. Bytes: low_rank.h.
#pragma once

#include "starling/codec/low_rank.h"

namespace starling {

class PowerSgdCodec : public LowRankCodec, public AveragingCodec {
 public:
  PowerSgdCodec(const std::vector<TensorShape>& shapes, int rank);
  // "q/<tensor>": Q of each factorised tensor, rank × cols. After average() the same on every rank.
  CodecState state() const override;
  void load_state(const CodecState& state) override;
  AveragingCodec* averaging() override { return this; }
  void average(std::span<float> data, std::span<float> own, const Mean& mean) override;

 protected:
  void factorise(size_t part, const float* matrix, float* p, float* q) override;

 private:
  // P and whole tensors of all parts, one after another: what the first mean is taken of.
  std::vector<float> left_factors(std::span<const float> data);
  // Orthonormalises each P in `left`; returns Q_w of all parts, one after another.
  std::vector<float> right_factors(std::span<const float> data, std::vector<float>& left) const;
  // out = P Q^T, or the tensor as it is.
  void multiply_out(const std::vector<float>& left, const std::vector<float>& right,
                    std::span<float> out) const;

  std::vector<std::vector<float>> q_;  // one a part; empty for those that travel as they are
};

}  // namespace starling
