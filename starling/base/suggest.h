// "Did you mean …": the candidate nearest to a misspelt word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace starling {

// The candidate with the smallest edit distance to `word` (a swap of neighbours counts once), empty if none is within a third of its length
// (at least 2 edits are always allowed).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace starling
