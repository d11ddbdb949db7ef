#include "starling/codec/codec.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {

void Codec::load_state(const CodecState& state) {
  if (state.empty()) return;
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("codec {} keeps no state, but the checkpoint has '{}' for it; resume with the codec of "
                  "the run that wrote it",
                  name(), state.begin()->first));
}

}  // namespace starling
