#include "starling/codec/prune.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "starling/codec/kernel.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"

namespace starling {
namespace {

uint32_t magnitude_bits(float x) {
  return __builtin_bit_cast(uint32_t, x) & 0x7fffffffu;
}

// Calls visit(index, value) for each of the `sent` values in a message for `count` values.
template <typename Visit>
void decode_each(std::span<const std::byte> in, size_t count, size_t sent, const Visit& visit) {
  const auto bad = [&](const char* what) { bad_message("prune", in.size(), count, what); };
  if (in.size() < 5 * sent) bad("ends before its last value");
  const std::byte* at = in.data() + 4 * sent;
  const std::byte* end = in.data() + in.size();
  uint64_t next = 0;
  for (size_t k = 0; k < sent; ++k) {
    uint64_t gap = 0;
    if (!load_varint(at, end, gap)) bad("ends inside an index");
    if (gap >= count - next) bad("has an index out of range");
    next += gap;
    visit(next, load_value<float>(in.data() + 4 * k));
    ++next;
  }
  if (at != end) bad("has bytes after its last value");
}

}  // namespace

KthMagnitude kth_magnitude(std::span<const float> in, size_t k) {
  STARLING_CHECK(k >= 1 && k <= in.size());
  KthMagnitude found;
  uint32_t known = 0;  // the bits that are determined so far
  for (const auto& [shift, width] : {std::pair{20, 11}, std::pair{9, 11}, std::pair{0, 9}}) {
    std::vector<size_t> counts(size_t{1} << width, 0);
    const uint32_t digits = (1u << width) - 1;
    for (const float x : in) {
      const uint32_t bits = magnitude_bits(x);
      if ((bits & known) == found.bits) ++counts[bits >> shift & digits];
    }
    uint32_t digit = digits;
    for (; found.above + counts[digit] < k; --digit) found.above += counts[digit];
    found.bits |= digit << shift;
    known |= digits << shift;
  }
  return found;
}

size_t PruneCodec::kept(size_t count) const {
  const auto k = static_cast<size_t>(std::ceil(keep_ * static_cast<double>(count)));
  return std::min(count, std::max<size_t>(k, 1));
}

size_t PruneCodec::encoded_bytes(size_t count) const {
  const size_t k = kept(count);
  size_t gaps = k;
  for (int bits = 7; bits < 63 && (count >> bits) > 0; bits += 7)
    gaps += std::min(k, count / ((size_t{1} << bits) + 1));
  return 4 * k + std::min(count, gaps);
}

size_t PruneCodec::encode(std::span<const float> in, std::span<std::byte> out) {
  check_room(out.size(), encoded_bytes(in.size()));
  const size_t k = kept(in.size());
  if (k == 0) return 0;
  const KthMagnitude border = kth_magnitude(in, k);
  size_t at_border = k - border.above;  // values to send of exactly the k-th magnitude
  std::byte* values = out.data();
  std::byte* gaps = out.data() + 4 * k;
  size_t next = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const uint32_t bits = magnitude_bits(in[i]);
    if (bits < border.bits || (bits == border.bits && at_border == 0)) continue;
    if (bits == border.bits) --at_border;
    store_value(values, in[i]);
    values += 4;
    gaps = store_varint(gaps, i - next);
    next = i + 1;
  }
  return static_cast<size_t>(gaps - out.data());
}

void PruneCodec::decode(std::span<const std::byte> in, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  decode_each(in, out.size(), kept(out.size()), [&](uint64_t i, float value) { out[i] = value; });
}

void PruneCodec::decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const {
  decode_each(in, out.size(), kept(out.size()), [&](uint64_t i, float value) { out[i] += scale * value; });
}

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_prune(const CodecSpec& spec, const std::vector<TensorShape>& /*shapes*/) {
  return std::make_unique<PruneCodec>(spec.keep);
}

}  // namespace starling
