#include "starling/codec/symmetric_int8.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "starling/codec/kernel.h"

namespace starling {
namespace {

constexpr uint32_t kMagnitudeBits = 0x7fffffffu, kInfinityBits = 0x7f800000u;
constexpr int8_t kNotANumber = -128;

STARLING_INLINE float largest_of(const float* values, size_t count) {
  uint32_t largest = 0;  // bits of magnitudes have the order of the magnitudes
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, values[i]) & kMagnitudeBits;
    const uint32_t finite = magnitude < kInfinityBits ? magnitude : 0;
    largest = largest > finite ? largest : finite;
  }
  return __builtin_bit_cast(float, largest);
}

STARLING_INLINE size_t encode_values(const float* from, size_t count, float range, std::byte* to) {
  const float inverse = 127.0f / range;
  const uint32_t largest = __builtin_bit_cast(uint32_t, range);
  uint32_t beyond = 0;  // of one call; a message has fewer than 2^32 values
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, from[i]) & kMagnitudeBits;
    float scaled = from[i] * inverse;
    scaled = scaled > 127.0f ? 127.0f : scaled;
    scaled = scaled < -127.0f ? -127.0f : scaled;
    // After adding 1.5 · 2^23, the lowest bits of the sum are the rounded integer in two's complement.
    const uint32_t code = __builtin_bit_cast(uint32_t, scaled + 12582912.0f) & 0xffu;
    to[i] = static_cast<std::byte>(magnitude < kInfinityBits ? code : 0x80u);
    beyond += magnitude > largest && magnitude < kInfinityBits ? 1u : 0u;
  }
  return beyond;
}

}  // namespace

float magnitude_percentile(std::span<const float> values, double percentile) {
  if (percentile >= 100) {
    float largest = 0;
    on_best_isa([&]() STARLING_KERNEL { largest = largest_of(values.data(), values.size()); });
    return largest;
  }
  std::vector<float> magnitudes;
  magnitudes.reserve(values.size());
  for (const float x : values) {
    if (std::isfinite(x)) magnitudes.push_back(std::fabs(x));
  }
  if (magnitudes.empty()) return 0;
  const auto count = static_cast<double>(magnitudes.size());
  // The subtraction keeps a product such as 99.9 · 1000 / 100 from being rounded up to the next rank.
  const double rank = std::clamp(std::ceil(percentile * count / 100 - 1e-9), 1.0, count);
  const auto place = magnitudes.begin() + static_cast<std::ptrdiff_t>(rank) - 1;
  std::nth_element(magnitudes.begin(), place, magnitudes.end());
  return *place;
}

size_t encode_symmetric_int8(std::span<const float> in, float range, std::span<std::byte> out) {
  STARLING_CHECK(range >= kSmallestRange, "a range of {}", range);
  check_room(out.size(), in.size());
  size_t beyond = 0;
  on_best_isa([&]() STARLING_KERNEL { beyond = encode_values(in.data(), in.size(), range, out.data()); });
  return beyond;
}

void decode_symmetric_int8(std::span<const std::byte> in, float range, std::span<float> out) {
  STARLING_CHECK(in.size() == out.size(), "{} codes for {} values", in.size(), out.size());
  const float scale = range / 127.0f;
  on_best_isa([&]() STARLING_KERNEL {
    const auto* q = reinterpret_cast<const int8_t*>(in.data());
    for (size_t i = 0; i < in.size(); ++i) {
      const float value = scale * static_cast<float>(q[i]);
      out[i] = q[i] == kNotANumber ? std::numeric_limits<float>::quiet_NaN() : value;
    }
  });
}

}  // namespace starling
