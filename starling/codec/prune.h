// PruneCodec sends only the k values of largest magnitude, unchanged, together with their positions. Aji,
// Heafield: "Sparse communication for distributed gradient descent", EMNLP 2017. For weights this is the
// pruning of Han, Mao, Dally: "Deep compression", ICLR 2016, which also codes positions as gaps.
//
//   k = ceil(keep n), at least 1. Of values of equal magnitude at the border the first ones are sent.
//   message: k values (fp32) in the order of their positions, then k numbers gap - 1 as varints.
//   gap = distance to the value sent before, from position -1 for the first value.
//   bytes(n) = 5 k + (gaps > 128) + (gaps > 16384) + ….           Variable: encode returns the exact number.
//   bytes(n) <= 4 k + min(n, k + min(k, n / 129) + min(k, n / 16385) + …).
//   The gaps sum to at most n, hence this bound.
//
// A stack, prune+int8 for example, encodes the k values by a second codec V, as one range without shapes. The
// message has V's message of k values in their place, so 4 k becomes the bytes of V for k values.
//
// In the order of magnitudes, NaN is larger than infinity, and infinity is larger than every number. Values
// that are not finite are therefore always sent, at most k of them.
//
// dgc (dgc.cc) sends such messages, too. There each tensor of the range has a threshold of its own: a tensor
// of m values sends its own k(m) = ceil(keep m), at least 1, and padding is not sent. The k of the message
// and of its bytes is then the sum of these k(m).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/codec/block_cut.h"
#include "starling/codec/codec.h"

namespace starling {

// Codec "prune". The top of this header has the format.
class PruneCodec : public Codec {
 public:
  // keep: the fraction of the values that is sent, above 0 and at most 1. values: the codec V of a stack, of
  // fixed rate, or null for fp32. name: that of the codec without V. shapes: the tensors whose values are
  // chosen apart from each other, or empty for one choice from the whole range.
  explicit PruneCodec(double keep, std::unique_ptr<Codec> values = nullptr, const std::string& name = "prune",
                      std::vector<TensorShape> shapes = {})
      : keep_(keep),
        values_(std::move(values)),
        name_(values_ ? name + "+" + values_->name() : name),
        tensors_(kWholeTensor, std::move(shapes)) {}
  std::string name() const override { return name_; }
  bool fixed_rate() const override { return false; }
  Combining combining() const override { return Combining::kMerged; }
  // Sets the fraction for the calls that follow.
  void set_keep(double keep) { keep_ = keep; }
  // Returns how many values of a range of `count` values are sent.
  size_t kept(size_t count) const;
  size_t encoded_bytes(size_t count) const override;
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;

 private:
  // More values than any tensor has, so that each tensor is one block of tensors_.
  static constexpr size_t kWholeTensor = size_t{1} << 48;

  // Returns how many of the `size` values of one tensor are sent.
  size_t kept_of(size_t size) const;
  // Returns the bytes of k values.
  size_t value_bytes(size_t k) const { return values_ ? values_->encoded_bytes(k) : 4 * k; }
  // Calls visit(index, value) for each value of a message for `count` values.
  template <typename Visit>
  void decode_each(std::span<const std::byte> in, size_t count, const Visit& visit) const;

  double keep_;
  std::unique_ptr<Codec> values_;  // may be null
  std::string name_;
  BlockCut tensors_;
};

// The k-th largest magnitude of a range.
struct KthMagnitude {
  uint32_t bits = 0;  // the bits of the k-th largest |x|
  size_t above = 0;   // how many |x| exceed it
};
// Returns the k-th largest magnitude, 1 <= k <= in.size(). It counts digits of 11, 11 and 9 bits in three
// passes over `in`.
KthMagnitude kth_magnitude(std::span<const float> in, size_t k);

}  // namespace starling
