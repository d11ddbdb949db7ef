#include "starling/topics/documents.h"

#include <algorithm>
#include <numeric>

namespace starling {

Documents::Documents(const Corpus& corpus, int32_t topics)
    : begin_(corpus.begin), topic_(corpus.word.size(), kNoTopic), table_(corpus.count(), -1) {
  list_begin_.assign(static_cast<size_t>(corpus.words) + 1, 0);
  for (const int32_t w : corpus.word) ++list_begin_[static_cast<size_t>(w) + 1];
  std::partial_sum(list_begin_.begin(), list_begin_.end(), list_begin_.begin());
  list_.resize(corpus.word.size());
  std::vector<uint32_t> next(list_begin_.begin(), list_begin_.end() - 1);
  // A table has `topics` counts. So the tables have at most 4 counts per token.
  const uint32_t longest = std::max(kShortDocument, static_cast<uint32_t>(topics) / 4);
  int64_t tables = 0;
  for (size_t d = 0; d < count(); ++d) {
    for (uint32_t i = begin_[d]; i < begin_[d + 1]; ++i)
      list_[next[static_cast<size_t>(corpus.word[i])]++] = {static_cast<uint32_t>(d), i};
    if (begin_[d + 1] - begin_[d] <= longest) continue;
    table_[d] = tables;
    tables += topics;
  }
  tables_.assign(static_cast<size_t>(tables), 0);
}

std::pair<uint32_t, uint32_t> Documents::count_two_in(const Topic* topics, uint32_t count, Topic a, Topic b) {
  uint32_t in_a = 0, in_b = 0;
  for (uint32_t from = 0; from < count;) {
    const uint32_t to = std::min(count, from + 32768);  // so that 16 bits hold a count
    uint16_t some_a = 0, some_b = 0;
    for (; from < to; ++from) {
      some_a = static_cast<uint16_t>(some_a + (topics[from] == a ? 1 : 0));
      some_b = static_cast<uint16_t>(some_b + (topics[from] == b ? 1 : 0));
    }
    in_a += some_a;
    in_b += some_b;
  }
  return {in_a, in_b};
}

void Documents::assign(std::span<const Topic> topics) {
  std::copy(topics.begin(), topics.end(), topic_.begin());
  std::fill(tables_.begin(), tables_.end(), 0);
  for (size_t d = 0; d < count(); ++d) {
    if (table_[d] < 0) continue;
    for (const Topic k : topics_of(d)) change_table(table_[d], kNoTopic, k);
  }
}

size_t Documents::bytes() const {
  const auto of = [](const auto& v) { return v.capacity() * sizeof(v[0]); };
  return of(begin_) + of(topic_) + of(list_begin_) + of(list_) + of(table_) + of(tables_);
}

}  // namespace starling
