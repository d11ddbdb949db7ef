#include "starling/codec/none.h"

#include <algorithm>

#include "starling/codec/kernel.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"

namespace starling {

size_t NoneCodec::encode(std::span<const float> in, std::span<std::byte> out) {
  check_room(out.size(), encoded_bytes(in.size()));
  if (!in.empty()) std::memcpy(out.data(), in.data(), in.size_bytes());
  return in.size_bytes();
}

void NoneCodec::decode(std::span<const std::byte> in, std::span<float> out) const {
  check_length(name(), in.size(), out.size_bytes(), out.size());
  if (!out.empty()) std::memcpy(out.data(), in.data(), in.size());
}

void NoneCodec::decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const {
  check_length(name(), in.size(), out.size_bytes(), out.size());
  const std::byte* from = in.data();
  float* to = out.data();
  const size_t n = out.size();
  on_best_isa([=]() STARLING_KERNEL {
    for (size_t i = 0; i < n; ++i) to[i] += scale * load_value<float>(from + 4 * i);
  });
}

void NoneCodec::average(std::span<float> data, std::span<float> own, const Mean& mean) {
  mean(data, own);
}

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_none(const CodecSpec& /*spec*/, const std::vector<TensorShape>& /*shapes*/) {
  return std::make_unique<NoneCodec>();
}

}  // namespace starling
