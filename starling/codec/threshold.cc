#include "starling/codec/threshold.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "starling/codec/kernel.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"

namespace starling {
namespace {

constexpr size_t kHeader = 8;
constexpr size_t kStride = 64;  // elements that are examined together; most strides hold nothing to send

// Returns the bits of the largest |x| of a stride.
STARLING_INLINE uint32_t largest_bits(const float* from, size_t m) {
  uint32_t largest = 0;
  for (size_t i = 0; i < m; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, from[i]) & 0x7fffffffu;
    largest = largest > magnitude ? largest : magnitude;
  }
  return largest;
}

struct Sent {
  std::byte* end;
  size_t count = 0;
  bool finite = true;
};

STARLING_INLINE Sent encode_beyond(const float* from, size_t n, float tau, std::byte* to) {
  const auto tau_bits = __builtin_bit_cast(uint32_t, tau);
  Sent sent{to};
  size_t next = 0;  // the element after the one sent last
  for (size_t begin = 0; begin < n; begin += kStride) {
    const size_t m = std::min(kStride, n - begin);
    const uint32_t largest = largest_bits(from + begin, m);
    if (largest <= tau_bits) continue;
    if (largest >= 0x7f800000u) return {to, 0, false};
    for (size_t i = begin; i < begin + m; ++i) {
      if (!(std::fabs(from[i]) > tau)) continue;
      sent.end = store_varint(sent.end, 2 * (i - next) + (from[i] < 0 ? 1 : 0));
      next = i + 1;
      ++sent.count;
    }
  }
  return sent;
}

// Calls visit(index, ±tau) for each element sent. Returns tau.
template <typename Visit>
float decode_each(std::span<const std::byte> in, size_t count, const Visit& visit) {
  const auto bad = [&](const char* what) { bad_message("threshold", in.size(), count, what); };
  if (in.size() < kHeader) bad("ends before its header of 8 bytes");
  const auto sent = load_value<uint32_t>(in.data());
  const auto tau = load_value<float>(in.data() + 4);
  if (sent > count) bad("announces more elements than there are");
  if (std::isnan(tau) ? sent > 0 : !(tau > 0 && std::isfinite(tau))) bad("has no positive threshold");
  const std::byte* at = in.data() + kHeader;
  const std::byte* end = in.data() + in.size();
  uint64_t next = 0;
  for (uint32_t k = 0; k < sent; ++k) {
    uint64_t number = 0;
    if (!load_varint(at, end, number)) bad("ends inside an index");
    if (number / 2 >= count - next) bad("has an index out of range");
    next += number / 2;
    visit(next, (number & 1) != 0 ? -tau : tau);
    ++next;
  }
  if (at != end) bad("has bytes after its last element");
  return tau;
}

}  // namespace

size_t ThresholdCodec::encode(std::span<const float> in, std::span<std::byte> out) {
  check_room(out.size(), encoded_bytes(in.size()));
  STARLING_CHECK(in.size() <= std::numeric_limits<uint32_t>::max());
  Sent sent{};
  on_best_isa(
      [&]() STARLING_KERNEL { sent = encode_beyond(in.data(), in.size(), tau_, out.data() + kHeader); });
  store_value(out.data(), static_cast<uint32_t>(sent.count));
  store_value(out.data() + 4, sent.finite ? tau_ : std::numeric_limits<float>::quiet_NaN());
  return static_cast<size_t>(sent.end - out.data());
}

void ThresholdCodec::decode(std::span<const std::byte> in, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  decode_add(in, out, 1.0f);
}

void ThresholdCodec::decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const {
  const float tau = decode_each(in, out.size(), [&](uint64_t i, float value) { out[i] += scale * value; });
  if (!std::isnan(tau)) return;
  for (float& x : out) x += tau;
}

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_threshold(const CodecSpec& spec, const std::vector<TensorShape>& /*shapes*/) {
  return std::make_unique<ThresholdCodec>(static_cast<float>(spec.tau));
}

}  // namespace starling
