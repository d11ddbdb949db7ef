// Generated text: sentences of a small probabilistic grammar of English, with what a character model has to
// learn in steps: spelling, agreement of subject and verb, nesting (relative clauses), punctuation.
// Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "starling/data/text_store.h"

namespace starling {

// Paragraph `index` (two to five sentences, ends in a newline): a function of (seed, index). ASCII.
std::string grammar_paragraph(uint64_t seed, int64_t index);

// `samples` samples, each the beginning of paragraphs of its own. Vocabulary: all letters and the punctuation
// used.
std::shared_ptr<const TextStore> make_grammar(uint64_t seed, int64_t samples);

}  // namespace starling
