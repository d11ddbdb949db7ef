#include "starling/codec/error_feedback.h"

#include <cstdint>

#include "starling/base/error.h"
#include "starling/codec/kernel.h"

namespace starling {
namespace {

void drop_not_finite(std::span<float> values) {
  for (float& x : values) {
    const bool finite = (__builtin_bit_cast(uint32_t, x) & 0x7f800000u) != 0x7f800000u;
    x = finite ? x : 0.0f;
  }
}

}  // namespace

void ErrorFeedback::check_count(size_t count) const {
  STARLING_CHECK(count == residual_.size(), "{} values, but the residual has {}", count, residual_.size());
}

size_t ErrorFeedback::encode(Codec& codec, std::span<const float> gradient, std::span<std::byte> out) {
  check_count(gradient.size());
  return encode_part(codec, 0, gradient, out);
}

size_t ErrorFeedback::encode_part(Codec& codec, size_t offset, std::span<const float> gradient,
                                  std::span<std::byte> out) {
  STARLING_CHECK(offset + gradient.size() <= residual_.size(), "values {} to {}, but the residual has {}",
                 offset, offset + gradient.size(), residual_.size());
  const std::span<float> part = std::span(residual_).subspan(offset, gradient.size());
  for (size_t i = 0; i < part.size(); ++i) part[i] += gradient[i];
  const size_t bytes = codec.encode(part, out);
  codec.decode_add(out.first(bytes), part, -1.0f);
  drop_not_finite(part);
  return bytes;
}

void ErrorFeedback::begin(std::span<float> data) {
  check_count(data.size());
  for (size_t i = 0; i < data.size(); ++i) {
    residual_[i] += data[i];
    data[i] = residual_[i];
  }
}

void ErrorFeedback::end(std::span<const float> contributed) {
  check_count(contributed.size());
  for (size_t i = 0; i < contributed.size(); ++i) residual_[i] -= contributed[i];
  drop_not_finite(residual_);
}

CodecState ErrorFeedback::state() const {
  return {{"residual", residual_}};
}

void ErrorFeedback::load_state(const CodecState& state) {
  const auto found = state.find("residual");
  if (found == state.end() || found->second.size() != residual_.size()) {
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("the checkpoint has {} for a residual of {} values of error feedback; resume "
                    "on the mesh of the run that wrote it",
                    found == state.end() ? "no values" : fmt::format("{} values", found->second.size()),
                    residual_.size()));
  }
  residual_ = found->second;
}

}  // namespace starling
