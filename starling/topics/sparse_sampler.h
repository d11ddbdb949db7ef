// SparseSampler samples topics as SaberLDA does (Li et al., ASPLOS 2017, arXiv 1610.02496). All tokens of a
// sweep have topics from counts that include the token, which are nearly those before the sweep:
//
//   p(k) ∝ (m_dk + α) φ_wk = m_dk φ_wk + α φ_wk,    φ_wk = (m_wk + β) / (m_k + V β).
//
// A document has few topics. So the first part is a sum over these, and the second part has the sum α Σ_k
// φ_wk, which is equal for all tokens of a word, and is drawn in constant time. SaberLDA draws it from a tree
// that suits a GPU, and SparseSampler from alias tables. A token takes time in proportion to the number of
// topics of its document. The sweeps are stochastic expectation maximization, and not a chain with the
// posterior as its distribution.
//
// Here m_dk is of the beginning of the sweep, m_wk of the moment when the rank begins the word, and m_k of
// the moment when it begins the slice. With one rank, m_wk is thus that of the beginning of the sweep. With
// several ranks, it includes the changes of the ranks that sampled the word earlier in the sweep.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/topics/topic_sampler.h"
#include "starling/topics/word_proposal.h"

namespace starling {

// Not thread-safe.
class SparseSampler : public TopicSampler {
 public:
  // documents must outlive the sampler.
  SparseSampler(const TopicModel& model, Documents& documents);

  void begin_sweep(double beta) override;
  void set_sizes(std::span<const int32_t> sizes) override;
  int32_t size(int32_t topic) const override { return sizes_[static_cast<size_t>(topic)]; }
  void sample(const Row& row, std::span<const Token> tokens, const TopicStart& start, RandomBits random,
              WordChange& change, SamplerCounts& counts) override;

  // The parts of sample(). Makes a row the present one.
  void begin_word(const Row& row);
  // Draws a topic for a token of the present row and of a document, and changes nothing.
  int32_t draw(uint32_t document, RandomBits& random) const;
  // Makes no row the present one.
  void end_word();

 private:
  // A topic of a document before the sweep.
  struct Share {
    Topic topic;
    uint32_t count;
  };

  const TopicModel model_;
  Documents& documents_;
  double beta_ = 0;
  std::vector<int32_t> sizes_;   // n_k, with the changes
  std::vector<float> phi_;       // of the present row, or of a word without counts
  std::vector<uint32_t> begin_;  // by document, in shares_; one more at the end
  std::vector<Share> shares_;    // of all documents before the sweep
  WordProposal proposal_;
  std::vector<int32_t> changes_;  // of the present row, by topic
  std::vector<int32_t> changed_;  // topics of changes_
  std::vector<uint32_t> counts_;  // zeros, by topic
};

}  // namespace starling
