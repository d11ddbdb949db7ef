#include "starling/codec/error_feedback.h"

#include <cstdint>

#include "starling/base/error.h"
#include "starling/codec/kernel.h"

namespace starling {

void ErrorFeedback::check_count(size_t count) const {
  STARLING_CHECK(count == residual_.size(), "{} values for a residual of {}", count, residual_.size());
}

size_t ErrorFeedback::encode(Codec& codec, std::span<const float> gradient, std::span<std::byte> out) {
  check_count(gradient.size());
  for (size_t i = 0; i < gradient.size(); ++i) residual_[i] += gradient[i];
  const size_t bytes = codec.encode(residual_, out);
  codec.decode_add(out.first(bytes), residual_, -1.0f);
  drop_not_finite();
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
  drop_not_finite();
}

void ErrorFeedback::drop_not_finite() {
  for (float& x : residual_) {
    const bool finite = (__builtin_bit_cast(uint32_t, x) & 0x7f800000u) != 0x7f800000u;
    x = finite ? x : 0.0f;
  }
}

CodecState ErrorFeedback::state() const {
  return {{"residual", residual_}};
}

void ErrorFeedback::load_state(const CodecState& state) {
  const auto found = state.find("residual");
  if (found == state.end() || found->second.size() != residual_.size()) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the checkpoint has {} of a residual of {} values for error feedback; resume on "
                            "the mesh of the run that wrote it",
                            found == state.end() ? "none" : fmt::format("{} values", found->second.size()),
                            residual_.size()));
  }
  residual_ = found->second;
}

}  // namespace starling
