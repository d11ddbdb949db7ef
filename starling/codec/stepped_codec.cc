#include "starling/codec/stepped_codec.h"

#include <fmt/format.h>

#include <cmath>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr uint64_t kHalfOfStep = uint64_t{1} << 24;  // floats hold all whole numbers up to this one

bool is_half_of_step(float value) {
  return value >= 0 && value < static_cast<float>(kHalfOfStep) && value == std::floor(value);
}

}  // namespace

CodecState SteppedCodec::state() const {
  return {{"step",
           {static_cast<float>(step_ % kHalfOfStep), static_cast<float>(step_ / kHalfOfStep % kHalfOfStep)}}};
}

void SteppedCodec::load_state(const CodecState& state) {
  const auto found = state.find("step");
  const bool fits = state.size() == 1 && found != state.end() && found->second.size() == 2 &&
                    is_half_of_step(found->second[0]) && is_half_of_step(found->second[1]);
  if (!fits) {
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("codec {}: the checkpoint does not have the step of the last message; resume with the "
                    "codec of the run that wrote it",
                    name()));
  }
  set_step(static_cast<uint64_t>(found->second[0]) + static_cast<uint64_t>(found->second[1]) * kHalfOfStep);
}

}  // namespace starling
