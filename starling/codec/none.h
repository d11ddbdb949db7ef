// NoneCodec copies the values as they are.
//
//   bytes(n) = 4 n.                                      Fixed rate, exact.
#pragma once

#include "starling/codec/codec.h"

namespace starling {

// Codec "none". The top of this header has the format.
class NoneCodec : public Codec, public AveragingCodec {
 public:
  std::string name() const override { return "none"; }
  bool fixed_rate() const override { return true; }
  Combining combining() const override { return Combining::kAveraged; }
  size_t encoded_bytes(size_t count) const override { return 4 * count; }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;
  // Ranks average by an all-reduce of the values.
  AveragingCodec* averaging() override { return this; }
  void average(std::span<float> data, std::span<float> own, const Mean& mean) override;
};

}  // namespace starling
