// A corpus that is drawn from the model itself, so that the true φ is known.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/topics/documents.h"
#include "starling/topics/topic_model.h"

namespace starling {

// The settings of a generated corpus.
struct GeneratedCorpus {
  TopicModel model;  // K, V, α and β of the truth
  int64_t documents = 2000;
  int64_t shortest = 100;  // the fewest tokens of a document
  int64_t longest = 200;   // the most tokens of a document
  uint64_t seed = 0;
};

// Returns the true φ, with the probability of word w in topic k at [w · K + k]. Every rank gets equal
// numbers.
std::vector<float> true_topics(const GeneratedCorpus& spec);
// Draws the documents of one of `ranks` ranks. A document does not depend on the number of ranks. phi:
// true_topics(spec). Errors: ConfigError if the shortest documents have 2^31 tokens or more.
Corpus generate_corpus(const GeneratedCorpus& spec, const std::vector<float>& phi, int rank, int ranks);

}  // namespace starling
