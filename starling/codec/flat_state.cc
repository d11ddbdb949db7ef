#include "starling/codec/flat_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "starling/base/error.h"

namespace starling {

std::vector<float> flat_state(const Codec& codec, const ErrorFeedback* feedback) {
  std::vector<float> flat;
  for (const auto& item : codec.state()) flat.insert(flat.end(), item.second.begin(), item.second.end());
  if (feedback != nullptr) flat.insert(flat.end(), feedback->residual().begin(), feedback->residual().end());
  return flat;
}

void load_flat_state(Codec& codec, ErrorFeedback* feedback, std::span<const float> values) {
  CodecState state = codec.state();
  size_t expected = feedback != nullptr ? feedback->residual().size() : 0;
  for (const auto& item : state) expected += item.second.size();
  if (values.size() != expected) {
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("the checkpoint has {} values of the state of codec {}, which has {} here; resume "
                    "with the same --codec, model and ranks",
                    values.size(), codec.name(), expected));
  }
  for (auto& item : state) {
    std::copy_n(values.begin(), item.second.size(), item.second.begin());
    values = values.subspan(item.second.size());
  }
  codec.load_state(state);
  if (feedback != nullptr) feedback->load_state({{"residual", {values.begin(), values.end()}}});
}

}  // namespace starling
