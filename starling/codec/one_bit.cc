#include "starling/codec/one_bit.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "starling/codec/kernel.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"

namespace starling {
namespace {

constexpr size_t kLanes = 16;  // independent sums, added in an order that does not depend on the vector unit

STARLING_INLINE size_t block_bytes(size_t m) {
  return 8 + (m + 7) / 8;
}

struct Means {
  float positive = 0, negative = 0;
};

// Returns the means of a block that has `positives` values >= 0.
STARLING_INLINE Means means_of(const float* from, size_t m, size_t positives) {
  float above[kLanes] = {}, below[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= m; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) above[k] += from[i + k] >= 0 ? from[i + k] : 0.0f;
    for (size_t k = 0; k < kLanes; ++k) below[k] += from[i + k] >= 0 ? 0.0f : from[i + k];  // includes NaN
  }
  for (size_t k = 0; i < m; ++i, ++k) (from[i] >= 0 ? above : below)[k] += from[i];
  double positive = 0, negative = 0;
  for (size_t k = 0; k < kLanes; ++k) {
    positive += above[k];
    negative += below[k];
  }
  Means means;
  if (positives > 0) means.positive = static_cast<float>(positive / static_cast<double>(positives));
  if (positives < m) means.negative = static_cast<float>(negative / static_cast<double>(m - positives));
  return means;
}

// Writes the signs of a block. Returns the number of values >= 0.
STARLING_INLINE size_t encode_signs(const float* from, size_t m, std::byte* to) {
  constexpr size_t kGroup = 64;
  size_t positives = 0;
  for (size_t begin = 0; begin < m; begin += kGroup) {
    const size_t n = std::min(kGroup, m - begin);
    uint8_t signs[kGroup] = {};
    for (size_t i = 0; i < n; ++i) signs[i] = from[begin + i] >= 0 ? 1 : 0;
    for (size_t i = 0; i < n; i += 8) {
      // Moves the low bit of byte k to bit 56 + k. No two of the 64 products share a bit.
      const uint64_t eight = load_value<uint64_t>(reinterpret_cast<const std::byte*>(signs + i));
      const auto bits = static_cast<uint8_t>(eight * 0x0102040810204080u >> 56);
      store_value(to + (begin + i) / 8, bits);
      positives += static_cast<size_t>(std::popcount(bits));
    }
  }
  return positives;
}

template <typename Put>
STARLING_INLINE void decode_block(const std::byte* from, float* to, size_t m, Put put) {
  const auto positive = load_value<float>(from), negative = load_value<float>(from + 4);
  const std::byte* signs = from + 8;
  size_t i = 0;
  for (; i + 32 <= m; i += 32) {
    const auto word = load_value<uint32_t>(signs + i / 8);
    for (size_t k = 0; k < 32; ++k) put(to[i + k], (word >> k & 1u) != 0 ? positive : negative);
  }
  for (; i < m; ++i)
    put(to[i], (static_cast<uint32_t>(signs[i / 8]) >> i % 8 & 1u) != 0 ? positive : negative);
}

}  // namespace

size_t OneBitCodec::encoded_bytes(size_t count) const {
  size_t bytes = 0;
  blocks_.for_each(count, [&](size_t begin, size_t end) { bytes += block_bytes(end - begin); });
  return bytes;
}

size_t OneBitCodec::encode(std::span<const float> in, std::span<std::byte> out) {
  const size_t bytes = encoded_bytes(in.size());
  check_room(out.size(), bytes);
  on_best_isa([&]() STARLING_KERNEL {
    std::byte* to = out.data();
    blocks_.for_each(in.size(), [&](size_t begin, size_t end) STARLING_KERNEL {
      const float* from = in.data() + begin;
      const size_t positives = encode_signs(from, end - begin, to + 8);
      const Means means = means_of(from, end - begin, positives);
      store_value(to, means.positive);
      store_value(to + 4, means.negative);
      to += block_bytes(end - begin);
    });
  });
  return bytes;
}

template <typename Put>
void OneBitCodec::decode_each(std::span<const std::byte> in, std::span<float> out, Put put) const {
  check_length(name(), in.size(), encoded_bytes(out.size()), out.size());
  on_best_isa([&]() STARLING_KERNEL {
    const std::byte* from = in.data();
    const auto block = [&](size_t begin, size_t end) STARLING_KERNEL {
      decode_block(from, out.data() + begin, end - begin, put);
      from += block_bytes(end - begin);
    };
    blocks_.for_each(out.size(), block, [&](size_t begin, size_t end) STARLING_KERNEL {
      for (size_t i = begin; i < end; ++i) put(out[i], 0.0f);
    });
  });
}

void OneBitCodec::decode(std::span<const std::byte> in, std::span<float> out) const {
  decode_each(in, out, Assign{});
}

void OneBitCodec::decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const {
  decode_each(in, out, AddScaled{scale});
}

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_one_bit(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  return std::make_unique<OneBitCodec>(spec.block, shapes);
}

}  // namespace starling
