#include "starling/topics/slices.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr int64_t kSlicesPerRank = 4;

// Cuts at equal numbers of tokens, and earlier where a slice would exceed the limit.
std::vector<WordSlice> cut_evenly(std::span<const int64_t> tokens, int32_t topics, int64_t slices,
                                  uint64_t most_bytes) {
  // Without tokens, all words are in one slice.
  const double all =
      std::max(1.0, static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0})));
  std::vector<WordSlice> out;
  double seen = 0;
  uint64_t bytes = 0;
  int32_t begin = 0;
  const auto close = [&](int32_t end) {
    out.push_back({begin, end});
    begin = end;
    bytes = 0;
  };
  for (size_t w = 0; w < tokens.size(); ++w) {
    const auto word = static_cast<int32_t>(w);
    const uint64_t row = most_row_memory(tokens[w], topics);
    if (most_bytes > 0 && bytes + row > most_bytes && word > begin) close(word);
    bytes += row;
    seen += static_cast<double>(tokens[w]);
    if (seen >= all * static_cast<double>(out.size() + 1) / static_cast<double>(slices)) close(word + 1);
  }
  const auto words = static_cast<int32_t>(tokens.size());
  if (begin < words) close(words);
  return out;
}

}  // namespace

std::vector<WordSlice> cut_words(std::span<const int64_t> tokens, int32_t topics, int ranks, int64_t slices,
                                 uint64_t most_bytes) {
  if (most_bytes > 0) {
    const int64_t most = *std::max_element(tokens.begin(), tokens.end());
    if (most_row_memory(most, topics) > most_bytes)
      throw ConfigError("--memory-limit", fmt::format("the row of one word takes {} bytes, and the rows of a "
                                                      "slice may take {}; use a larger limit",
                                                      most_row_memory(most, topics), most_bytes));
  }
  const int64_t least = ranks == 1 ? 1 : 2 * int64_t{ranks};
  if (slices == 0) slices = ranks == 1 ? 1 : kSlicesPerRank * ranks;
  std::vector<WordSlice> out = cut_evenly(tokens, topics, std::max(slices, least), most_bytes);
  const auto words = static_cast<int32_t>(tokens.size());
  while (std::ssize(out) < least || out.size() % static_cast<size_t>(ranks) != 0)
    out.push_back({words, words});
  return out;
}

}  // namespace starling
