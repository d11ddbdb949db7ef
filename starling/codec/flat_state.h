// The state of a codec and of its error feedback as one row of numbers, for checkpoints: the codec's values in the order of
// their names, then the residual.
#pragma once

#include <span>
#include <vector>

#include "starling/codec/error_feedback.h"

namespace starling {

// feedback: null for none. Empty where neither carries anything.
std::vector<float> flat_state(const Codec& codec, const ErrorFeedback* feedback);

// Errors: Error(kCheckpoint) where there are not as many values as flat_state() gives.
void load_flat_state(Codec& codec, ErrorFeedback* feedback, std::span<const float> values);

}  // namespace starling
