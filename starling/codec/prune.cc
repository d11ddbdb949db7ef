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

}  // namespace

template <typename Visit>
void PruneCodec::decode_each(std::span<const std::byte> in, size_t count, const Visit& visit) const {
  const auto bad = [&](const char* what) { bad_message(name_, in.size(), count, what); };
  const size_t sent = kept(count), head = value_bytes(sent);
  if (in.size() < head + sent) bad("ends before its last value");
  std::vector<float> values(sent);
  if (values_) {
    values_->decode(in.first(head), values);
  } else if (sent > 0) {
    std::memcpy(values.data(), in.data(), head);
  }
  const std::byte* at = in.data() + head;
  const std::byte* end = in.data() + in.size();
  uint64_t next = 0;
  for (const float value : values) {
    uint64_t gap = 0;
    if (!load_varint(at, end, gap)) bad("ends inside an index");
    if (gap >= count - next) bad("has an index out of range");
    next += gap;
    visit(next, value);
    ++next;
  }
  if (at != end) bad("has bytes after its last value");
}

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

size_t PruneCodec::kept_of(size_t size) const {
  const auto k = static_cast<size_t>(std::ceil(keep_ * static_cast<double>(size)));
  return std::min(size, std::max<size_t>(k, 1));
}

size_t PruneCodec::kept(size_t count) const {
  size_t k = 0;
  tensors_.for_each(count, [&](size_t begin, size_t end) { k += kept_of(end - begin); });
  return k;
}

size_t PruneCodec::encoded_bytes(size_t count) const {
  const size_t k = kept(count);
  size_t gaps = k;
  for (int bits = 7; bits < 63 && (count >> bits) > 0; bits += 7)
    gaps += std::min(k, count / ((size_t{1} << bits) + 1));
  return value_bytes(k) + std::min(count, gaps);
}

size_t PruneCodec::encode(std::span<const float> in, std::span<std::byte> out) {
  check_room(out.size(), encoded_bytes(in.size()));
  const size_t k = kept(in.size()), head = value_bytes(k);
  std::vector<float> values;
  values.reserve(k);
  std::byte* gaps = out.data() + head;
  size_t next = 0;
  tensors_.for_each(in.size(), [&](size_t begin, size_t end) {
    const size_t of_tensor = kept_of(end - begin);
    const KthMagnitude border = kth_magnitude(in.subspan(begin, end - begin), of_tensor);
    size_t at_border = of_tensor - border.above;  // values to send of exactly the k-th magnitude
    for (size_t i = begin; i < end; ++i) {
      const uint32_t bits = magnitude_bits(in[i]);
      if (bits < border.bits || (bits == border.bits && at_border == 0)) continue;
      if (bits == border.bits) --at_border;
      values.push_back(in[i]);
      gaps = store_varint(gaps, i - next);
      next = i + 1;
    }
  });
  if (k == 0) return 0;
  if (values_) {
    values_->encode(values, out.first(head));
  } else {
    std::memcpy(out.data(), values.data(), head);
  }
  return static_cast<size_t>(gaps - out.data());
}

void PruneCodec::decode(std::span<const std::byte> in, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  decode_each(in, out.size(), [&](uint64_t i, float value) { out[i] = value; });
}

void PruneCodec::decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const {
  decode_each(in, out.size(), [&](uint64_t i, float value) { out[i] += scale * value; });
}

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_prune(const CodecSpec& spec, const std::vector<TensorShape>& /*shapes*/) {
  return std::make_unique<PruneCodec>(spec.keep, make_value_codec(spec));
}

}  // namespace starling
