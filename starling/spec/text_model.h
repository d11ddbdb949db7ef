// What the sizes of a text model of the zoo (gpt, llama) require of each other and of a tensor axis.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

// A mistake in a configuration: the keys that contradict each other, and what is wrong.
struct ModelFault {
  std::vector<std::string_view> keys;
  std::string message;
};

// Returns the first contradiction between the sizes of a text model, or nothing. model.heads is at least 1.
// Models of images have none.
std::optional<ModelFault> text_model_fault(const ModelSpec& model);

// Returns why `ranks` ranks of a tensor axis cannot divide the heads of a text model, or nothing.
std::optional<ModelFault> tensor_axis_fault(const ModelSpec& model, int64_t ranks);

}  // namespace starling
