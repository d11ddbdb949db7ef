// TextSource: a TextStore as a Source of windows of tokens and their successors.
#pragma once

#include <memory>
#include <string>

#include "starling/data/source.h"
#include "starling/data/text_store.h"

namespace starling {

// shift_windows: in each epoch all windows begin up to tokens - 1 characters later, by a draw from (seed,
// epoch), so that characters meet different windows. Off: sample i is always the same.
std::shared_ptr<const Source> make_text_source(std::string name, std::shared_ptr<const TextStore> store,
                                               int64_t tokens, bool shift_windows, uint64_t seed);

}  // namespace starling
