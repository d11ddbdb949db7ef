// Continues a text with a trained text model (`starling sample`).
#pragma once

#include <string>

#include "starling/commands/commands.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns the characters that the model adds to sample.prompt. spec.model.init names the weights. Each
// character is drawn from the model's distribution given the last model.tokens characters, by train.seed.
// `vocabulary` is that of the model (RunWeights). If it is empty, it is taken from the data that spec.data
// names. Errors: ConfigError for a model that is not one of text, an empty prompt, and a character of the
// prompt that the vocabulary lacks; DataError of the weights and the data.
std::string continued_text(const RunSpec& spec, const std::string& vocabulary, const SampleOptions& sample);

}  // namespace starling
