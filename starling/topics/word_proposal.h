// WordProposal draws topics from q(k) ∝ (m_wk + β) / (m_k + V β) for one word at a time, where m are counts
// that do not change meanwhile. The row of a word has few topics, so q is a mixture: m_wk / (m_k + V β) has
// an alias table for each word, and β / (m_k + V β) has one for all words.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/server/row_batch.h"
#include "starling/topics/alias_table.h"
#include "starling/topics/random_bits.h"

namespace starling {

// Not thread-safe.
class WordProposal {
 public:
  // Takes 1 / (m_k + V β) of each topic.
  void set_inverses(std::vector<float> inverses, double beta) {
    inverses_ = std::move(inverses);
    smooth_sum_ = beta * smooth_.build(inverses_);
  }
  // Makes a row the present one.
  void begin_word(const Row& row) {
    topics_.assign(row.index.begin(), row.index.end());
    weights_.clear();
    for (size_t i = 0; i < topics_.size(); ++i)
      weights_.push_back(static_cast<float>(row.value[i]) * inverses_[static_cast<size_t>(topics_[i])]);
    sparse_sum_ = sparse_.build(weights_);
  }
  // Draws a topic for the present row.
  int32_t draw(RandomBits& random) const {
    if (random.uniform() * (sparse_sum_ + smooth_sum_) < sparse_sum_) return topics_[sparse_.draw(random)];
    return static_cast<int32_t>(smooth_.draw(random));
  }
  // Returns the sum of (m_wk + β) / (m_k + V β) over all topics.
  double sum() const { return sparse_sum_ + smooth_sum_; }
  // Returns 1 / (m_k + V β) of each topic.
  const std::vector<float>& inverses() const { return inverses_; }
  // Returns the topics of the present row.
  const std::vector<int32_t>& topics() const { return topics_; }

 private:
  std::vector<float> inverses_, weights_;
  AliasTable smooth_, sparse_;
  double smooth_sum_ = 0, sparse_sum_ = 0;
  std::vector<int32_t> topics_;  // of the places of sparse_
};

}  // namespace starling
