// Makes a Source from a TextStore: its samples are windows of tokens and their successors.
#pragma once

#include <memory>
#include <string>

#include "starling/data/formats/text_store.h"
#include "starling/data/source.h"

namespace starling {

// Returns a source of windows of `tokens` tokens. If `shift_windows` is true, all windows of an epoch begin
// up to tokens - 1 characters later, by a draw from (seed, epoch). A character is then in different windows
// of different epochs. If `shift_windows` is false, sample i is always the same.
std::shared_ptr<const Source> make_text_source(std::string name, std::shared_ptr<const TextStore> store,
                                               int64_t tokens, bool shift_windows, uint64_t seed);

}  // namespace starling
