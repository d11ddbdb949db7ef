#include "starling/codec/one_bit.h"

#include <cstdint>

#include "starling/codec/kernel.h"
#include "starling/codec/message_bytes.h"

namespace starling {
namespace {

constexpr size_t kLanes = 16;  // independent sums, in the same order whatever the vector unit

STARLING_INLINE size_t block_bytes(size_t m) {
  return 8 + (m + 7) / 8;
}

struct Means {
  float positive = 0, negative = 0;
};

STARLING_INLINE Means means_of(const float* from, size_t m) {
  float positive[kLanes] = {}, negative[kLanes] = {};
  uint32_t count[kLanes] = {};
  const auto add = [&](float x, size_t lane) STARLING_KERNEL {
    const bool is_positive = x >= 0;  // NaN is not
    positive[lane] += is_positive ? x : 0.0f;
    negative[lane] += is_positive ? 0.0f : x;
    count[lane] += is_positive ? 1 : 0;
  };
  size_t i = 0;
  for (; i + kLanes <= m; i += kLanes)
    for (size_t k = 0; k < kLanes; ++k) add(from[i + k], k);
  for (size_t k = 0; i < m; ++i, ++k) add(from[i], k);
  double above = 0, below = 0;
  size_t positives = 0;
  for (size_t k = 0; k < kLanes; ++k) {
    above += positive[k];
    below += negative[k];
    positives += count[k];
  }
  Means means;
  if (positives > 0) means.positive = static_cast<float>(above / static_cast<double>(positives));
  if (positives < m) means.negative = static_cast<float>(below / static_cast<double>(m - positives));
  return means;
}

STARLING_INLINE void encode_signs(const float* from, size_t m, std::byte* to) {
  size_t i = 0;
  for (; i + 32 <= m; i += 32) {
    uint32_t bits[32], word = 0;
    for (size_t k = 0; k < 32; ++k) bits[k] = (from[i + k] >= 0 ? 1u : 0u) << k;
    for (size_t k = 0; k < 32; ++k) word |= bits[k];
    store_value(to + i / 8, word);
  }
  for (; i < m; i += 8) {
    uint8_t byte = 0;
    for (size_t k = 0; k < 8 && i + k < m; ++k) byte |= static_cast<uint8_t>((from[i + k] >= 0 ? 1 : 0) << k);
    store_value(to + i / 8, byte);
  }
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
      const Means means = means_of(in.data() + begin, end - begin);
      store_value(to, means.positive);
      store_value(to + 4, means.negative);
      encode_signs(in.data() + begin, end - begin, to + 8);
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

}  // namespace starling
