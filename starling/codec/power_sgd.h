// PowerSgdCodec is lowrank for gradients. Each call executes one step of subspace iteration. It continues
// from the Q of the call before, because the gradients of successive steps have similar directions. Vogels,
// Karimireddy, Jaggi: "PowerSGD: practical low-rank gradient compression for distributed optimization",
// NeurIPS 2019, algorithm 1, with Q orthonormalized before use as in the authors' code.
//
//   P_w = M_w Q,   P = orth(mean of P_w),   Q_w = M_w^T P,   Q = mean of Q_w,   the mean of M_w ~ P Q^T.
//   error feedback (algorithm 2): e_w = M_w - P Q_w^T.
//
// average() computes both means by all-reduces of thin matrices. Tensors that are not factorized are part of
// the first one. encode() computes one rank's factors without any mean, which is the message of a push to a
// server. low_rank.h has the bytes.
//
// In the stacks lowrank+fp16 and lowrank+bf16, R rounds the elements of both arrays on their way. C_w is what
// rank w contributes to the second mean (compressed_all_reduce.h):
//
//   P = orth(R(mean of R(P_w))),   Q_w = M_w^T P,   Q = R(mean of R(Q_w)) = mean of C_w.
//   e_w = M_w - P C_w^T.
//
// P may be any orthonormal basis, so its rounding costs no value: e_w has what P does not span. The rounding
// of Q is in C_w, and so in e_w.
#pragma once

#include "starling/codec/low_rank.h"

namespace starling {

// Codec "lowrank:form=power-sgd". The top of this header has the algorithm.
class PowerSgdCodec : public LowRankCodec, public AveragingCodec {
 public:
  // rank: columns of the factors. values: as for LowRankCodec. Errors: Error(kConfig) if there are no shapes.
  PowerSgdCodec(const std::vector<TensorShape>& shapes, int rank, std::unique_ptr<Codec> values = nullptr);
  // Returns Q of each factorized tensor, rank × cols values, under the name "q/<index of the tensor>". After
  // average() the state is equal on all ranks.
  CodecState state() const override;
  void load_state(const CodecState& state) override;
  Combining combining() const override { return Combining::kAveraged; }
  AveragingCodec* averaging() override { return this; }
  Codec* rounding() override { return values(); }
  void average(std::span<float> data, std::span<float> own, const Mean& mean) override;

 protected:
  void factorize(size_t part, const float* matrix, float* p, float* q) override;

 private:
  // Returns the input of the first mean: for each part P, or the tensor itself if it is not factorized.
  std::vector<float> left_factors(std::span<const float> data);
  // Orthonormalizes each P in `left` and returns the Q_w of all parts, one after another.
  std::vector<float> right_factors(std::span<const float> data, std::vector<float>& left) const;
  // Copies the P of all parts from one array of left_factors() to another.
  void take_left_factors(const std::vector<float>& from, std::vector<float>& to) const;
  // Writes P Q^T, or the tensor itself if it is not factorized, to each part of `out`.
  void multiply_out(const std::vector<float>& left, const std::vector<float>& right,
                    std::span<float> out) const;

  std::vector<std::vector<float>> q_;  // of each part; empty for parts that are not factorized
};

}  // namespace starling
