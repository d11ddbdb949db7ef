// Cuts off documents for testing, and cuts each of them into two halves.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "starling/topics/documents.h"

namespace starling {

// Returns whether a document is held out. It depends on the number of the document alone. share: of the
// documents.
bool is_held_out(int64_t document, double share);

// Returns the documents for training and the held-out ones.
std::pair<Corpus, Corpus> split_corpus(const Corpus& corpus, double share);

// Returns the tokens of a held-out document, as words. θ is fitted to the first half, and the second half is
// scored. A document of n tokens has ⌈n / 2⌉ in the first half. The choice depends on the number of the
// document and on n.
std::pair<std::vector<int32_t>, std::vector<int32_t>> halves_of(const Corpus& corpus, size_t document);

}  // namespace starling
