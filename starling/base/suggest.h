// Suggestions for misspelled words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace starling {

// Returns the candidate with the smallest edit distance to `word`. Swapping two adjacent characters counts as
// one edit. Returns an empty string if every candidate needs more edits than a third of the length of `word`,
// and more than 2.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace starling
