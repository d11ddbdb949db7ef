// Generated text: sentences of a small probabilistic grammar of English. A character model has to learn its
// spelling, the agreement of subject and verb, nesting (relative clauses) and punctuation. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "starling/data/formats/text_store.h"

namespace starling {

// Returns paragraph `index`: two to five sentences of ASCII that end in a newline. The result is a function
// of (seed, index).
std::string grammar_paragraph(uint64_t seed, int64_t index);

// Returns a store of `samples` samples. Each sample is a window over paragraphs of its own. It begins at a
// random place in the first of them. The vocabulary holds all letters, the space, the newline and the
// punctuation that the grammar uses.
std::shared_ptr<const TextStore> make_grammar(uint64_t seed, int64_t samples);

}  // namespace starling
