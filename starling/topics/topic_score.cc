#include "starling/topics/topic_score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "starling/base/error.h"
#include "starling/job/job_checkpoint.h"
#include "starling/server/row_options.h"
#include "starling/topics/corpus_split.h"

namespace starling {
namespace {

// Documents whose rows are read together.
struct Chunk {
  size_t begin = 0, end = 0;
  std::vector<int64_t> words;  // ascending
};

// Appends to a chunk as many documents as fit.
Chunk next_chunk(const Corpus& corpus, size_t from, size_t most_words) {
  Chunk chunk{from, from, {}};
  std::vector<int64_t> merged;
  while (chunk.end < corpus.count()) {
    const auto words = corpus.document(chunk.end);
    std::vector<int64_t> own(words.begin(), words.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    merged.clear();
    std::set_union(chunk.words.begin(), chunk.words.end(), own.begin(), own.end(),
                   std::back_inserter(merged));
    if (merged.size() > most_words && chunk.end > from) break;
    chunk.words.swap(merged);
    ++chunk.end;
  }
  return chunk;
}

class DocumentScorer {
 public:
  explicit DocumentScorer(const ScoreOptions& options) : options_(options) {}

  // Returns the sum of log p of the second half.
  double score(const Chunk& chunk, const TopicRows& topics, const Corpus& corpus, size_t d) {
    const auto [first, second] = halves_of(corpus, d);
    const auto count = static_cast<size_t>(options_.topics);
    theta_.assign(count, 1.0F / static_cast<float>(count));
    for (int i = 0; i < options_.iterations; ++i) improve(chunk, topics, first);
    const double common = common_part(topics);
    double sum = 0;
    for (const int32_t w : second) {
      const double p = own_part(row_of(chunk, topics, w)) + common;
      if (!(p > 0) || !std::isfinite(p))
        throw Error(
            ErrorCode::kNumeric,
            fmt::format(
                "word {} of held-out document {} has probability {}: smooth φ, so that no element is 0",
                w + 1, corpus.id[d] + 1, p));
      sum += std::log(p);
    }
    return sum;
  }

 private:
  static BasicRow<float> row_of(const Chunk& chunk, const TopicRows& topics, int32_t w) {
    const auto at = std::lower_bound(chunk.words.begin(), chunk.words.end(), w);
    return topics.rows.row(static_cast<size_t>(at - chunk.words.begin()));
  }
  double own_part(const BasicRow<float>& row) const {
    double sum = 0;
    for (size_t i = 0; i < row.index.size(); ++i)
      sum += static_cast<double>(theta_[static_cast<size_t>(row.index[i])]) * row.value[i];
    return sum;
  }
  double common_part(const TopicRows& topics) const {
    double sum = 0;
    for (size_t k = 0; k < theta_.size(); ++k) sum += static_cast<double>(theta_[k]) * topics.common[k];
    return sum;
  }

  void improve(const Chunk& chunk, const TopicRows& topics, const std::vector<int32_t>& words) {
    next_.assign(theta_.size(), static_cast<float>(options_.alpha));
    const double common = common_part(topics);
    double inverse_sum = 0;
    for (const int32_t w : words) {
      const BasicRow<float> row = row_of(chunk, topics, w);
      const double p = own_part(row) + common;
      if (!(p > 0)) continue;  // a word without a topic says nothing about θ
      inverse_sum += 1 / p;
      const auto inverse = static_cast<float>(1 / p);
      for (size_t i = 0; i < row.index.size(); ++i) {
        const auto k = static_cast<size_t>(row.index[i]);
        next_[k] += theta_[k] * row.value[i] * inverse;
      }
    }
    double sum = 0;
    for (size_t k = 0; k < next_.size(); ++k) {
      next_[k] += theta_[k] * topics.common[k] * static_cast<float>(inverse_sum);
      sum += next_[k];
    }
    for (size_t k = 0; k < next_.size(); ++k) theta_[k] = static_cast<float>(next_[k] / sum);
  }

  const ScoreOptions& options_;
  std::vector<float> theta_, next_;
};

}  // namespace

TopicScore score_topics(Group& group, const Corpus& held_out, const ReadTopics& read,
                        const ScoreOptions& options) {
  double sums[3] = {0, 0, 0};  // of log p, tokens, documents
  uint64_t bytes = 0;
  agree_on_success(group, [&] {
    DocumentScorer scorer(options);
    TopicRows topics;
    for (size_t d = 0; d < held_out.count();) {
      const Chunk chunk = next_chunk(held_out, d, options.words_at_once);
      read(chunk.words, topics);
      bytes = std::max(bytes, 16 * uint64_t{topics.rows.elements()});  // half of them of the counts
      for (; d < chunk.end; ++d) {
        const size_t scored = held_out.document(d).size() / 2;
        if (scored == 0) continue;
        sums[0] += scorer.score(chunk, topics, held_out, d);
        sums[1] += static_cast<double>(scored);
        sums[2] += 1;
      }
    }
  });
  std::vector<double> all(3 * static_cast<size_t>(group.size()));
  all_gather(group, sums, all.data(), 3, DataType::kFp64);
  double log_p = 0, tokens = 0, documents = 0;  // added in the order of the ranks
  for (size_t r = 0; r < all.size(); r += 3) log_p += all[r], tokens += all[r + 1], documents += all[r + 2];
  if (tokens == 0)
    throw DataError(held_out.name + ": no held-out document has two tokens; hold more documents out");
  return {std::exp(-log_p / tokens), static_cast<int64_t>(documents), static_cast<int64_t>(tokens), bytes};
}

ReadTopics topics_of_counts(RowStore& rows, const TopicModel& model) {
  return [&rows, model](std::span<const int64_t> words, TopicRows& out) {
    std::vector<int64_t> keys(words.begin(), words.end());
    keys.push_back(kTotalsKey);
    RowBatch counts;
    rows.pull(keys, counts);
    std::vector<int32_t> sizes(static_cast<size_t>(model.topics), 0);
    counts.add_to(words.size(), sizes);
    std::vector<double> inverse(sizes.size());
    out.common.resize(sizes.size());
    for (size_t k = 0; k < sizes.size(); ++k) {
      inverse[k] = 1 / (sizes[k] + model.beta * model.words);
      out.common[k] = static_cast<float>(model.beta * inverse[k]);
    }
    out.rows.clear();
    for (size_t i = 0; i < words.size(); ++i) {
      const Row row = counts.row(i);
      out.rows.begin_row(row.key);
      for (size_t j = 0; j < row.index.size(); ++j)
        out.rows.add(row.index[j],
                     static_cast<float>(row.value[j] * inverse[static_cast<size_t>(row.index[j])]));
    }
  };
}

ReadTopics topics_of_matrix(std::span<const float> phi, int32_t topics) {
  return [phi, topics](std::span<const int64_t> words, TopicRows& out) {
    out.common.assign(static_cast<size_t>(topics), 0);
    out.rows.clear();
    for (const int64_t w : words) {
      out.rows.begin_row(w);
      for (int32_t k = 0; k < topics; ++k) {
        const float value =
            phi[static_cast<size_t>(w) * static_cast<size_t>(topics) + static_cast<size_t>(k)];
        if (value != 0) out.rows.add(k, value);
      }
    }
  };
}

}  // namespace starling
