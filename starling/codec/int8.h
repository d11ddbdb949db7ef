// Int8Codec writes blocks of values as 8-bit integers, each block with its own scale. This is absmax
// quantization. Dettmers, "8-bit approximations for parallelism in deep learning", 2016, proposes 8-bit
// gradients.
//
//   scale = max |x| / 127 over the block,   q = round(x / scale),   decoded = scale q.
//   message: for each block of m values: scale (fp32), m × int8.
//   bytes(n) = n + 4 ceil(n / block). With shapes it is the sum over the tensors.    Fixed rate, exact.
//   |x - decoded| <= scale / 2, and the rounding of fp32.
//
// A block that holds a NaN or infinity decodes to NaN. A block whose numbers all have magnitudes below 1e-36
// decodes to zeros.
#pragma once

#include "starling/codec/block_cut.h"
#include "starling/codec/codec.h"

namespace starling {

// Codec "int8". The top of this header has the format.
class Int8Codec : public Codec {
 public:
  // block and shapes: as for BlockCut.
  Int8Codec(size_t block, std::vector<TensorShape> shapes) : blocks_(block, std::move(shapes)) {}
  std::string name() const override { return "int8"; }
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
