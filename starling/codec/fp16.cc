#include "starling/codec/fp16.h"

#include "starling/codec/kernel.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"

namespace starling {
namespace {

template <typename Put>
void decode_each(std::span<const std::byte> in, std::span<float> out, Put put) {
  check_length("fp16", in.size(), 2 * out.size(), out.size());
  const std::byte* from = in.data();
  float* to = out.data();
  const size_t n = out.size();
  on_best_isa([=]() STARLING_KERNEL {
    for (size_t i = 0; i < n; ++i) put(to[i], fp32_of_fp16(load_value<uint16_t>(from + 2 * i)));
  });
}

}  // namespace

size_t Fp16Codec::encode(std::span<const float> in, std::span<std::byte> out) {
  check_room(out.size(), encoded_bytes(in.size()));
  const float* from = in.data();
  std::byte* to = out.data();
  const size_t n = in.size();
  on_best_isa([=]() STARLING_KERNEL {
    for (size_t i = 0; i < n; ++i) store_value(to + 2 * i, fp16_of_fp32(from[i]));
  });
  return 2 * n;
}

void Fp16Codec::decode(std::span<const std::byte> in, std::span<float> out) const {
  decode_each(in, out, Assign{});
}

void Fp16Codec::decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const {
  decode_each(in, out, AddScaled{scale});
}

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_fp16(const CodecSpec& /*spec*/, const std::vector<TensorShape>& /*shapes*/) {
  return std::make_unique<Fp16Codec>();
}

}  // namespace starling
