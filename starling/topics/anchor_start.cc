#include "starling/topics/anchor_start.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>

#include "starling/base/keyed_random.h"

namespace starling {
namespace {

constexpr size_t kMostDocuments = 400;           // of a word that are read
constexpr size_t kMostTokensRead = 20'000;       // of these documents that are read, about
constexpr size_t kMostTokensOfAnchor = 200'000;  // of an anchor, about
constexpr size_t kFewestTokens = 1000;           // of these documents, where a corpus has many words
constexpr size_t kMostWork = 1'000'000'000;      // tokens that are read for all words, about
constexpr size_t kMostChoices = 8;               // topics with which a word may begin
constexpr double kLeastLift = 2;                 // of a word that begins with the topic of an anchor
constexpr double kAnchorLift = 1000;             // of an anchor itself
// Anchors have so many documents. Fewer documents say less about an anchor, and serve if fewer words than
// kChoicesPerTopic for each topic have that many: the best of few words may have two topics.
constexpr size_t kChoicesPerTopic = 10;
constexpr size_t kFewestDocuments[] = {80, 20, 5};

// Counts the tokens around a word.
class Surroundings {
 public:
  Surroundings(const Corpus& corpus, const Documents& documents)
      : corpus_(corpus),
        documents_(documents),
        counts_(static_cast<size_t>(corpus.words), 0),
        tokens_(static_cast<double>(corpus.word.size())) {}

  // Calls visit(w, count) for each other word of every `stride`-th document of `list`, which has `word`, from
  // number `from` on. If the list has more tokens than `budget`, every n-th token of each document counts.
  // Returns the number of tokens.
  template <typename Visit>
  double count(int32_t word, std::span<const uint32_t> list, size_t from, size_t stride, size_t budget,
               const Visit& visit) {
    size_t all = 0;
    for (const uint32_t d : list) all += corpus_.document(d).size();
    const size_t step = std::max<size_t>(1, (all + budget - 1) / budget);
    double tokens = 0;
    for (size_t i = from; i < list.size(); i += stride) {
      const auto words = corpus_.document(list[i]);
      // Tokens ascend by words. So that all words count alike, documents begin at different tokens.
      for (size_t j = mix64(list[i]) % step; j < words.size(); j += step) {
        const int32_t w = words[j];
        if (w == word) continue;
        if (counts_[static_cast<size_t>(w)]++ == 0) seen_.push_back(w);
        ++tokens;
      }
    }
    for (const int32_t w : seen_) {
      visit(w, counts_[static_cast<size_t>(w)]);
      counts_[static_cast<size_t>(w)] = 0;
    }
    seen_.clear();
    return tokens;
  }
  // Returns documents of a word, at most kMostDocuments of them and spread over all of them.
  std::vector<uint32_t> documents_of(int32_t word) const {
    std::vector<uint32_t> list;
    const auto tokens = documents_.tokens_of(word);
    const size_t step = std::max<size_t>(1, tokens.size() / kMostDocuments);
    for (size_t i = 0; i < tokens.size() && list.size() < kMostDocuments; i += step) {
      if (list.empty() || list.back() != tokens[i].document) list.push_back(tokens[i].document);
    }
    return list;
  }
  // Returns the share of a word among all tokens.
  double share(int32_t word) const {
    return static_cast<double>(documents_.tokens_of(word).size()) / tokens_;
  }

 private:
  const Corpus& corpus_;
  const Documents& documents_;
  std::vector<uint32_t> counts_;
  std::vector<int32_t> seen_;
  double tokens_;
};

// Returns Σ_w p_1(w) p_2(w) / p(w) − 1, at least 0. list: documents of the word. scratch: zeros, one for each
// word.
double excess_of(int32_t word, std::span<const uint32_t> list, size_t budget, Surroundings& around,
                 std::vector<double>& scratch) {
  std::vector<int32_t> seen;
  double sum = 0;
  const double a = around.count(word, list, 0, 2, budget, [&](int32_t v, uint32_t n) {
    scratch[static_cast<size_t>(v)] = n;
    seen.push_back(v);
  });
  const double b = around.count(word, list, 1, 2, budget, [&](int32_t v, uint32_t n) {
    sum += scratch[static_cast<size_t>(v)] * n / around.share(v);
  });
  for (const int32_t v : seen) scratch[static_cast<size_t>(v)] = 0;
  return a > 0 && b > 0 ? std::max(0.0, sum / (a * b) - 1) : 0;
}

struct Entry {
  int32_t word = 0, topic = 0;
  double lift = 0;
};

// Chooses anchors among words with at least `fewest` documents, and appends what they lift to `entries`.
class AnchorChoice {
 public:
  AnchorChoice(const Corpus& corpus, const Documents& documents, const std::function<bool()>& go_on)
      : around_(corpus, documents),
        go_on_(go_on),
        documents_(static_cast<size_t>(corpus.words), 0),
        gain_(documents_.size()),
        cover_(gain_.size(), 1) {
    const size_t budget = budget_of(documents, corpus.words);
    std::vector<double> scratch(gain_.size(), 0);
    for (size_t w = 0; w < gain_.size(); ++w) {
      const auto word = static_cast<int32_t>(w);
      if (documents.tokens_of(word).size() < kFewestOfAll) continue;
      if (!go_on_()) return;
      const std::vector<uint32_t> list = around_.documents_of(word);
      documents_[w] = list.size();
      if (list.size() < kFewestOfAll) continue;
      gain_[w] =
          excess_of(word, list, budget, around_, scratch) * std::sqrt(static_cast<double>(list.size()));
    }
  }

  void choose(size_t fewest, size_t topics, std::vector<int32_t>& anchors, std::vector<Entry>& entries) {
    std::vector<Candidate> heap;
    for (size_t w = 0; w < gain_.size(); ++w) {
      if (gain_[w] > 0 && documents_[w] >= fewest) heap.push_back({gain_[w] / cover_[w], w});
    }
    if (fewest > kFewestOfAll && heap.size() < kChoicesPerTopic * topics) return;
    std::make_heap(heap.begin(), heap.end());
    while (anchors.size() < topics && go_on_()) {
      const size_t best = take_best(heap);
      if (best == gain_.size()) return;
      const auto topic = static_cast<int32_t>(anchors.size());
      anchors.push_back(static_cast<int32_t>(best));
      entries.push_back({anchors.back(), topic, kAnchorLift});
      gain_[best] = 0;
      add_lifts(anchors.back(), topic, std::clamp(kMostWork / topics, kFewestTokens, kMostTokensOfAnchor),
                entries);
    }
  }

 private:
  static constexpr size_t kFewestOfAll = std::end(kFewestDocuments)[-1];

  // A word with its gain over its cover, which may have fallen since.
  struct Candidate {
    double value;
    size_t word;
    bool operator<(const Candidate& other) const {
      return value != other.value ? value < other.value : word > other.word;
    }
  };

  static size_t budget_of(const Documents& documents, int32_t words) {
    size_t candidates = 1;
    for (int32_t w = 0; w < words; ++w) candidates += documents.tokens_of(w).size() < kFewestOfAll ? 0 : 1;
    return std::clamp(kMostWork / candidates, kFewestTokens, kMostTokensRead);
  }

  // Removes the word with the largest value from a heap. Returns the number of words if there is none.
  size_t take_best(std::vector<Candidate>& heap) const {
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      Candidate& last = heap.back();
      const double value = gain_[last.word] / cover_[last.word];
      if (value == last.value) {
        const size_t word = last.word;
        heap.pop_back();
        return word;
      }
      last.value = value;  // Values only fall, so the others are at most what the heap says.
      std::push_heap(heap.begin(), heap.end());
    }
    return gain_.size();
  }

  void add_lifts(int32_t anchor, int32_t topic, size_t budget, std::vector<Entry>& entries) {
    std::vector<std::pair<int32_t, uint32_t>> found;
    const double tokens = around_.count(anchor, around_.documents_of(anchor), 0, 1, budget,
                                        [&](int32_t v, uint32_t n) { found.push_back({v, n}); });
    for (const auto& [v, n] : found) {
      const double lift = (n + 1) / (tokens * around_.share(v) + 1);
      cover_[static_cast<size_t>(v)] = std::max(cover_[static_cast<size_t>(v)], lift);
      if (lift > kLeastLift) entries.push_back({v, topic, lift});
    }
  }

  Surroundings around_;
  const std::function<bool()>& go_on_;
  std::vector<size_t> documents_;  // by word, at most kMostDocuments
  std::vector<double> gain_;       // by word; 0: no candidate
  std::vector<double> cover_;      // by word: its largest lift, at least 1
};

// Keeps the largest lifts of each word. Their squares are the weights.
void keep_choices(std::vector<Entry>& entries, size_t words, TopicStart& start) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    if (a.word != b.word) return a.word < b.word;
    return a.lift != b.lift ? a.lift > b.lift : a.topic < b.topic;
  });
  size_t at = 0;
  start.begin.push_back(0);
  for (size_t w = 0; w < words; ++w) {
    double sum = 0;
    const size_t from = start.choices.size();
    for (; at < entries.size() && entries[at].word == static_cast<int32_t>(w); ++at) {
      if (start.choices.size() - from == kMostChoices) continue;
      const double weight = entries[at].lift * entries[at].lift;
      start.choices.push_back({entries[at].topic, static_cast<float>(weight)});
      sum += weight;
    }
    for (size_t i = from; i < start.choices.size(); ++i) start.choices[i].weight /= static_cast<float>(sum);
    start.begin.push_back(static_cast<uint32_t>(start.choices.size()));
  }
}

}  // namespace

int32_t TopicStart::draw(int32_t word, RandomBits& random) const {
  if (begin.empty()) return -1;
  const uint32_t from = begin[static_cast<size_t>(word)], to = begin[static_cast<size_t>(word) + 1];
  if (from == to) return -1;
  auto at = static_cast<float>(random.uniform());
  for (uint32_t i = from; i + 1 < to; ++i) {
    at -= choices[i].weight;
    if (at < 0) return choices[i].topic;
  }
  return choices[to - 1].topic;
}

TopicStart anchor_start(const Corpus& corpus, const Documents& documents, int32_t topics,
                        const std::function<bool()>& go_on) {
  TopicStart start;
  std::vector<Entry> entries;
  AnchorChoice choice(corpus, documents, go_on);
  for (const size_t fewest : kFewestDocuments)
    choice.choose(fewest, static_cast<size_t>(topics), start.anchors, entries);
  keep_choices(entries, static_cast<size_t>(corpus.words), start);
  return start;
}

}  // namespace starling
