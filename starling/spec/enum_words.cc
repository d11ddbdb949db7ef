#include "starling/spec/enum_words.h"

#include <algorithm>

namespace starling {

std::vector<std::string> split_words(std::string_view words) {
  std::vector<std::string> out;
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    out.emplace_back(words.substr(0, end));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return out;
}

std::optional<size_t> find_word(std::string_view words, std::string_view word) {
  const auto all = split_words(words);
  const auto it = std::find(all.begin(), all.end(), word);
  return it == all.end() ? std::nullopt : std::optional<size_t>(it - all.begin());
}

}  // namespace starling
