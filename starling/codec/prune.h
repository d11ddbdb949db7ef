// prune: only the k values of largest magnitude travel, as they are, with their places. Aji, Heafield: "Sparse
// communication for distributed gradient descent", EMNLP 2017; as "only the largest weights travel" the pruning of Han, Mao,
// Dally: "Deep compression", ICLR 2016, whose coding of gaps this is.
//
//   k = ceil(keep n), at least 1; of values of equal magnitude at the border the first ones
//   message: k values (fp32) in the order of their places, k numbers gap - 1 as varints (gap: to the one before, from -1)
//   bytes(n) = 5 k + (gaps > 128) + (gaps > 16384) + …            variable: encode returns the exact number
//           <= 4 k + min(n, k + min(k, n / 129) + min(k, n / 16385) + …)   for the gaps add up to n at most
// NaN counts as larger than infinity, and that as larger than any number: what is not finite always travels (k at a time).
#pragma once

#include <cstdint>

#include "starling/codec/codec.h"

namespace starling {

class PruneCodec : public Codec {
 public:
  explicit PruneCodec(double keep) : keep_(keep) {}
  std::string name() const override { return "prune"; }
  bool fixed_rate() const override { return false; }
  // Values that travel, of `count`.
  size_t kept(size_t count) const;
  size_t encoded_bytes(size_t count) const override;
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;

 private:
  double keep_;
};

// The bits of the k-th largest |x| (1 <= k <= in.size()), and how many of |x| exceed it: three passes of counting by digits
// of 11, 11 and 9 bits.
struct KthMagnitude {
  uint32_t bits = 0;
  size_t above = 0;
};
KthMagnitude kth_magnitude(std::span<const float> in, size_t k);

}  // namespace starling
