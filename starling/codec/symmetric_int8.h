// Symmetric 8-bit quantization with a range that both ends know, so that a message has no scale. Jacob et
// al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR
// 2018 (arXiv 1712.05877), equation 1 with zero-point 0 and codes from -127 to 127.
//
//   s = a / 127,   q = clamp(round(x / s), -127, 127),   decoded = s q.
//   bytes(n) = n.
//   |x - decoded| <= s / 2 if |x| <= a, and the rounding of fp32.
//
// a is the range and above 0. A value takes one int8.
//
// A finite value beyond the range saturates: it decodes to a or -a. NaN and infinity have the code -128 and
// decode to NaN. All instruction sets give equal bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace starling {

// Ranges below this number are of no use, because 127 / range may overflow.
inline constexpr float kSmallestRange = 1e-36f;

// Returns the nearest-rank percentile of the magnitudes of the finite values: the smallest magnitude that is
// at least as large as `percentile` percent of them. percentile: above 0, at most 100; 100 is the largest
// magnitude. Returns 0 if no value is finite.
float magnitude_percentile(std::span<const float> values, double percentile);

// Writes in.size() codes. Returns the number of finite values beyond the range. range: at least
// kSmallestRange. `out` must have in.size() bytes.
size_t encode_symmetric_int8(std::span<const float> in, float range, std::span<std::byte> out);

// Reads out.size() codes of encode_symmetric_int8() with the same range.
void decode_symmetric_int8(std::span<const std::byte> in, float range, std::span<float> out);

}  // namespace starling
