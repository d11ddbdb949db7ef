#include "starling/codec/bf16.h"

#include "starling/base/bfloat16.h"
#include "starling/codec/kernel.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"

namespace starling {
namespace {

template <typename Put>
void decode_each(std::span<const std::byte> in, std::span<float> out, Put put) {
  check_length("bf16", in.size(), 2 * out.size(), out.size());
  const std::byte* from = in.data();
  float* to = out.data();
  const size_t n = out.size();
  on_best_isa([=]() STARLING_KERNEL {
    for (size_t i = 0; i < n; ++i) put(to[i], to_fp32(load_value<Bf16>(from + 2 * i)));
  });
}

}  // namespace

size_t Bf16Codec::encode(std::span<const float> in, std::span<std::byte> out) {
  check_room(out.size(), encoded_bytes(in.size()));
  const float* from = in.data();
  std::byte* to = out.data();
  const size_t n = in.size();
  on_best_isa([=]() STARLING_KERNEL {
    for (size_t i = 0; i < n; ++i) store_value(to + 2 * i, to_bf16(from[i]));
  });
  return 2 * n;
}

void Bf16Codec::decode(std::span<const std::byte> in, std::span<float> out) const {
  decode_each(in, out, Assign{});
}

void Bf16Codec::decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const {
  decode_each(in, out, AddScaled{scale});
}

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_bf16(const CodecSpec& /*spec*/, const std::vector<TensorShape>& /*shapes*/) {
  return std::make_unique<Bf16Codec>();
}

}  // namespace starling
