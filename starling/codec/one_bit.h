// OneBitCodec sends the sign of each value and two means per block. The receiver puts the mean of the block's
// nonnegative values at each nonnegative value, and the mean of the negative values elsewhere. Seide, Fu,
// Droppo, Li, Yu: "1-bit stochastic gradient descent and its application to data-parallel distributed
// training of speech DNNs", Interspeech 2014. The blocks of the paper are the columns of a weight matrix.
//
//   x >= 0 -> mean of the block's values >= 0,   x < 0 -> mean of those < 0.
//   message: per block of m values: two means (fp32), ceil(m / 8) bytes of signs, first one in the low bit.
//   bytes(n) = sum over the blocks of 8 + ceil(m / 8) = n / 8 + 8 n / block for whole blocks.    Fixed rate.
//
// These two means have the least squared error of all pairs for a threshold at 0. The codec alone is biased.
// The paper's algorithm combines it with ErrorFeedback (error_feedback.h), which is optional here so that the
// effect can be measured. If a block holds a NaN or infinity, all values of its sign in the block decode to
// values that are not finite. A NaN counts as negative.
#pragma once

#include "starling/codec/block_cut.h"
#include "starling/codec/codec.h"

namespace starling {

// Codec "1bit". The top of this header has the format.
class OneBitCodec : public Codec {
 public:
  // block and shapes: as for BlockCut.
  OneBitCodec(size_t block, std::vector<TensorShape> shapes) : blocks_(block, std::move(shapes)) {}
  std::string name() const override { return "1bit"; }
  bool fixed_rate() const override { return true; }
  Combining combining() const override { return Combining::kAdded; }
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
