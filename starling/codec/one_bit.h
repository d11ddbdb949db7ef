// 1bit: the sign of each value; the receiver puts the mean of the block's positive values where it was positive, and the
// mean of the negative ones elsewhere. Seide, Fu, Droppo, Li, Yu: "1-bit stochastic gradient descent and its application
// to data-parallel distributed training of speech DNNs", Interspeech 2014: its blocks are the columns of a weight matrix.
//
//   x >= 0 -> mean of the values >= 0 of the block,   x < 0 -> mean of those < 0: the least squares for a threshold at 0
//   message: for each block of m values: two means (fp32), ceil(m / 8) bytes of signs, the first value in the low bit
//   bytes(n) = sum over the blocks of 8 + ceil(m / 8) = n / 8 + 8 n / block for whole blocks    fixed rate, exact
// By itself it is biased: the paper's algorithm is this with ErrorFeedback (error_feedback.h), which is a choice here so
// that the difference can be seen. A block with a NaN or infinity decodes to one where it was (or where its sign is).
#pragma once

#include "starling/codec/block_cut.h"
#include "starling/codec/codec.h"

namespace starling {

class OneBitCodec : public Codec {
 public:
  OneBitCodec(size_t block, std::vector<TensorShape> shapes) : blocks_(block, std::move(shapes)) {}
  std::string name() const override { return "1bit"; }
  bool fixed_rate() const override { return true; }
  size_t encoded_bytes(size_t count) const override;
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;

 private:
  template <typename Put>
  void decode_each(std::span<const std::byte> in, std::span<float> out, Put put) const;
  BlockCut blocks_;
};

}  // namespace starling
