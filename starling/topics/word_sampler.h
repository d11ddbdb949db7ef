// WordSampler samples the topics of a word's tokens by Metropolis–Hastings with a cycle of document and word
// proposals, as LightLDA does (Yuan et al., WWW 2015, arXiv 1412.1576). The cost of a token does not depend
// on the number of topics. The target is the conditional distribution of the collapsed Gibbs sampler,
//
//   p(k) ∝ (n_dk + α) (n_wk + β) / (n_k + V β),
//
// where the counts exclude the token.
//
//   document proposal   q(k) ∝ n_dk + α: the topic of a random token of the document, or any topic. Its
//                       acceptance probability needs no n_dk, because the counts of the document are exact.
//   word proposal       q(k) ∝ (m_wk + β) / (m_k + V β) from an alias table, where m_wk are the counts when
//                       the sampler began the word, and m_k those when it began the slice.
//
// LightLDA goes through the documents and looks up the row of each token's word. WordSampler goes through the
// words. So one row at a time is dense and in the cache, and documents are looked up. A document takes two
// bytes per token, whatever the number of topics is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/topics/topic_sampler.h"
#include "starling/topics/word_proposal.h"

namespace starling {

// Not thread-safe.
class WordSampler : public TopicSampler {
 public:
  // documents must outlive the sampler. cycles: pairs of a document and a word proposal per token.
  WordSampler(const TopicModel& model, Documents& documents, int cycles);

  void begin_sweep(double beta) override;
  void set_sizes(std::span<const int32_t> sizes) override;
  int32_t size(int32_t topic) const override { return states_[static_cast<size_t>(topic)].size; }
  void sample(const Row& row, std::span<const Token> tokens, const TopicStart& start, RandomBits random,
              WordChange& change, SamplerCounts& counts) override;

  // The parts of sample(). Makes a row the present one, and builds its alias table.
  void begin_word(const Row& row);
  // Samples a token of the present row that has a topic.
  void sample_token(const Token& token, RandomBits& random);
  // Appends the changes of the present row. No row is present afterwards.
  void end_word(WordChange& change);

 private:
  // What the acceptance probabilities need of a topic, in a quarter of a cache line.
  struct State {
    int32_t count = 0;        // n_wk of the present row
    int32_t known = 0;        // m_wk
    int32_t size = 0;         // n_k
    float known_inverse = 0;  // 1 / (m_k + V β)
  };
  float word_weight(const State& s) const { return (static_cast<float>(s.known) + beta_) * s.known_inverse; }
  // Returns kNoTopic if the drawn token is the token itself.
  int32_t draw_from_document(const Token& token, RandomBits& random) const;
  bool accepts_from_document(int32_t topic, int32_t next, RandomBits& random) const;
  bool accepts_from_word(const Token& token, int32_t topic, int32_t next, RandomBits& random) const;
  void give(const Token& token, int32_t topic);
  // Sorts new_topics_. A set of bits is faster than std::sort unless the topics are few.
  void sort_new_topics();

  const TopicModel model_;
  Documents& documents_;
  const float alpha_;
  float beta_ = 0, beta_sum_ = 0;  // β and V β of the sweep
  std::vector<State> states_;      // by topic
  WordProposal proposal_;
  std::vector<int32_t> proposed_;     // of a token: from the document and from the word, by turns
  std::vector<int32_t> new_topics_;   // that the row did not have; a topic may be in it twice
  std::vector<uint64_t> topic_bits_;  // 0, with a bit for each topic
};

}  // namespace starling
