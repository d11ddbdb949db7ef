// TopicModel names the numbers of latent Dirichlet allocation (Blei, Ng and Jordan, JMLR 2003). Document d
// has a mixture of topics θ_d ~ Dirichlet(α), topic k has a distribution of words φ_k ~ Dirichlet(β), and
// each token has a topic z ~ θ_d and a word w ~ φ_z. n_dk, n_wk and n_k count the tokens with topic k in
// document d, of word w, and in all documents.
#pragma once

#include <cstdint>

namespace starling {

// The topic of a token, below kNoTopic.
using Topic = uint16_t;
// A token whose document does not take part yet has this topic.
inline constexpr Topic kNoTopic = 0xFFFF;
// The most topics of a model.
inline constexpr int32_t kMostTopics = 0xFFFF;

// The most tokens of a corpus, because n_k has 32 bits.
inline constexpr int64_t kMostTokens = 0x7FFFFFFF;
// The smallest and the largest α and β. Smaller ones underflow in fp32.
inline constexpr double kLeastPrior = 1e-6, kMostPrior = 1e6;

// The numbers of a model. All ranks have equal ones.
struct TopicModel {
  int32_t topics = 100;  // K
  int32_t words = 0;     // V
  double alpha = 0.1;    // α of each topic
  double beta = 0.01;    // β of each word
};

}  // namespace starling
