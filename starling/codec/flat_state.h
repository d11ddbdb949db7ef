// The state of a codec and of its error feedback as one array of numbers, for checkpoints. The codec's values
// come first, in the order of their names. The residual follows.
#pragma once

#include <span>
#include <vector>

#include "starling/codec/error_feedback.h"

namespace starling {

// Returns the state. feedback: null for none. The array is empty if there is no state.
std::vector<float> flat_state(const Codec& codec, const ErrorFeedback* feedback);

// Restores the state. Errors: Error(kCheckpoint) if the number of values is not that of flat_state().
void load_flat_state(Codec& codec, ErrorFeedback* feedback, std::span<const float> values);

}  // namespace starling
