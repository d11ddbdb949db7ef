// The score of topics: the perplexity of the second halves of held-out documents, with θ from the first
// halves. One scorer serves for φ from any program.
//
// θ begins uniform. An iteration replaces it by that of expectation maximization with the prior α,
//
//   θ_k ∝ α + Σ over the tokens w of the first half of θ_k φ_wk / Σ_j θ_j φ_wj.
//
//   perplexity = exp(− Σ over the tokens w of the second halves of log Σ_k θ_k φ_wk / their number)
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "starling/comm/group.h"
#include "starling/server/row_store.h"
#include "starling/topics/documents.h"

namespace starling {

// Rows of φ: φ_wk is the element k of row w, plus common[k]. Few elements of a row of counts are not zero.
struct TopicRows {
  BasicRowBatch<float> rows;  // in the order of the words
  std::vector<float> common;  // by topic
};
// Reads the rows of φ of some words, which ascend. Every rank calls it as often as it needs.
using ReadTopics = std::function<void(std::span<const int64_t> words, TopicRows& out)>;

struct ScoreOptions {
  int32_t topics = 1;
  double alpha = 0.1;
  int iterations = 50;
  size_t words_at_once = 20'000;  // whose rows a rank holds at a time, unless one document has more
};

// A score over all ranks.
struct TopicScore {
  double perplexity = 0;
  int64_t documents = 0;  // that have a token in the second half
  int64_t tokens = 0;     // of the second halves
  uint64_t bytes = 0;     // the most that this rank held of rows
};

// Scores the held-out documents of all ranks. Collective. Errors: DataError if there is no token to score;
// Error(kNumeric) if a token has probability 0; those of `read`.
TopicScore score_topics(Group& group, const Corpus& held_out, const ReadTopics& read,
                        const ScoreOptions& options);

// Reads φ = (n_wk + β) / (n_k + V β) from counts. `rows` must outlive the function.
ReadTopics topics_of_counts(RowStore& rows, const TopicModel& model);
// Reads φ from a matrix with φ_wk at [w · topics + k]. The matrix must outlive the function.
ReadTopics topics_of_matrix(std::span<const float> phi, int32_t topics);

}  // namespace starling
