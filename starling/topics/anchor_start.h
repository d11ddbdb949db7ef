// The first topics of tokens. A sampler that begins with random topics needs hundreds of sweeps until topics
// emerge, and then keeps topics that are mixtures of two and topics that occur twice. Here each topic begins
// with an anchor: a word whose documents have their own vocabulary (after Arora et al., "A practical
// algorithm for topic modeling with provable guarantees", ICML 2013). Topic k then begins with the words that
// occur more often in the documents of anchor k than in the corpus.
//
//   lift(w | a) = (tokens of w in the documents of a + 1) / (their expected number + 1)
//
// Anchors are chosen one after another: the word with the largest gain that the earlier anchors do not cover.
// A word is covered if its lift is large in the documents of an anchor. The gain of a word is the excess of
// Σ_w p_1(w) p_2(w) / p(w) over 1, times the root of its number of documents, where p_1 and p_2 are the
// distributions of words in two halves of its documents. It is 0 for words that occur everywhere.
//
// At most 400 documents of a word are read, and about 20,000 tokens of them, or 200,000 for an anchor that is
// chosen. All words take about 10^9 tokens, and all anchors, too. With more than 50,000 words or 5,000
// topics, fewer tokens are read for each, but at least 1000.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "starling/topics/documents.h"
#include "starling/topics/random_bits.h"

namespace starling {

// The topics with which the tokens of each word begin.
struct TopicStart {
  // A topic that a word may begin with. The weights of a word sum to 1.
  struct Choice {
    int32_t topic;
    float weight;
  };
  std::vector<uint32_t> begin;  // by word, in `choices`; one more at the end. Empty: all topics are random
  std::vector<Choice> choices;
  std::vector<int32_t> anchors;  // of each topic that has one

  // Draws a topic for a token of a word. Returns −1 if the word has no choices.
  int32_t draw(int32_t word, RandomBits& random) const;
};

// Finds the anchors in the documents of one rank. go_on: is called for each word and each anchor. If it
// returns false, the function returns at once with what it has.
TopicStart anchor_start(const Corpus& corpus, const Documents& documents, int32_t topics,
                        const std::function<bool()>& go_on);

}  // namespace starling
