#include "starling/codec/int8.h"

#include <cstdint>
#include <limits>

#include "starling/codec/kernel.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"

namespace starling {
namespace {

constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr float kSmallest = 1e-36f;  // 127 / max overflows for maxima below about 4e-37

STARLING_INLINE void encode_block(const float* from, size_t m, std::byte* to) {
  uint32_t largest = 0;  // of the bits of |x|; NaN is above infinity, and infinity above numbers
  for (size_t i = 0; i < m; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, from[i]) & 0x7fffffffu;
    largest = largest > magnitude ? largest : magnitude;
  }
  const float max = __builtin_bit_cast(float, largest);
  if (largest >= kInfinityBits || max < kSmallest) {
    store_value(to, largest >= kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
    std::memset(to + 4, 0, m);
    return;
  }
  store_value(to, max / 127.0f);
  const float inverse = 127.0f / max;
  for (size_t i = 0; i < m; ++i) {
    // After adding 1.5 · 2^23, the lowest bits of the sum are the rounded integer in two's complement.
    const uint32_t bits = __builtin_bit_cast(uint32_t, from[i] * inverse + 12582912.0f);
    to[4 + i] = static_cast<std::byte>(bits & 0xffu);
  }
}

}  // namespace

size_t Int8Codec::encoded_bytes(size_t count) const {
  size_t bytes = 0;
  blocks_.for_each(count, [&](size_t begin, size_t end) { bytes += 4 + (end - begin); });
  return bytes;
}

size_t Int8Codec::encode(std::span<const float> in, std::span<std::byte> out) {
  const size_t bytes = encoded_bytes(in.size());
  check_room(out.size(), bytes);
  on_best_isa([&]() STARLING_KERNEL {
    std::byte* to = out.data();
    blocks_.for_each(in.size(), [&](size_t begin, size_t end) STARLING_KERNEL {
      encode_block(in.data() + begin, end - begin, to);
      to += 4 + (end - begin);
    });
  });
  return bytes;
}

template <typename Put>
void Int8Codec::decode_each(std::span<const std::byte> in, std::span<float> out, Put put) const {
  check_length(name(), in.size(), encoded_bytes(out.size()), out.size());
  on_best_isa([&]() STARLING_KERNEL {
    const std::byte* from = in.data();
    const auto block = [&](size_t begin, size_t end) STARLING_KERNEL {
      const float scale = load_value<float>(from);
      const auto* q = reinterpret_cast<const int8_t*>(from + 4);
      float* to = out.data() + begin;
      const size_t m = end - begin;
      for (size_t i = 0; i < m; ++i) put(to[i], scale * static_cast<float>(q[i]));
      from += 4 + m;
    };
    blocks_.for_each(out.size(), block, [&](size_t begin, size_t end) STARLING_KERNEL {
      for (size_t i = begin; i < end; ++i) put(out[i], 0.0f);
    });
  });
}

void Int8Codec::decode(std::span<const std::byte> in, std::span<float> out) const {
  decode_each(in, out, Assign{});
}

void Int8Codec::decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const {
  decode_each(in, out, AddScaled{scale});
}

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_int8(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  return std::make_unique<Int8Codec>(spec.block, shapes);
}

}  // namespace starling
