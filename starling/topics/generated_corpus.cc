#include "starling/topics/generated_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "starling/base/error.h"
#include "starling/base/keyed_normal.h"
#include "starling/topics/random_bits.h"

namespace starling {
namespace {

// They tell the streams of one seed apart.
constexpr uint64_t kTopicKey = 0x746F706963;
constexpr uint64_t kDocumentKey = 0x646F63;

double normal(RandomBits& random) {
  const double logarithm = std::log1p(-random.uniform());
  return normal_of(logarithm, random.uniform());
}

// Returns the logarithm of a number with the gamma distribution of a shape (Marsaglia and Tsang, ACM TOMS
// 26(3), 2000). Numbers of small shapes are too small for a double, but their logarithms are not.
double log_gamma_number(double shape, RandomBits& random) {
  const double more = shape < 1 ? std::log1p(-random.uniform()) / shape : 0;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal(random), v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    if (std::log1p(-random.uniform()) < x * x / 2 + d - d * v + d * std::log(v))
      return std::log(d * v) + more;
  }
}

// Fills `values` with numbers of a symmetric Dirichlet distribution. If the concentration is so small that
// even the logarithms overflow, one place has the whole probability.
void draw_dirichlet(double concentration, RandomBits& random, std::vector<double>& values) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (double& v : values) largest = std::max(largest, v = log_gamma_number(concentration, random));
  if (!std::isfinite(largest)) {
    std::fill(values.begin(), values.end(), 0);
    values[random.below(static_cast<uint32_t>(values.size()))] = 1;
    return;
  }
  for (double& v : values) sum += v = std::exp(v - largest);
  for (double& v : values) v /= sum;
}

// Draws a place of a cumulative distribution, whose last element is about 1.
size_t draw_place(const double* cumulative, size_t count, RandomBits& random) {
  const double at = random.uniform() * cumulative[count - 1];
  return std::min(count - 1,
                  static_cast<size_t>(std::upper_bound(cumulative, cumulative + count, at) - cumulative));
}

}  // namespace

std::vector<float> true_topics(const GeneratedCorpus& spec) {
  const auto topics = static_cast<size_t>(spec.model.topics), words = static_cast<size_t>(spec.model.words);
  std::vector<float> phi(topics * words);
  std::vector<double> values(words);
  for (size_t k = 0; k < topics; ++k) {
    RandomBits random(key_of(spec.seed, kTopicKey, k));
    draw_dirichlet(spec.model.beta, random, values);
    for (size_t w = 0; w < words; ++w) phi[w * topics + k] = static_cast<float>(values[w]);
  }
  return phi;
}

Corpus generate_corpus(const GeneratedCorpus& spec, const std::vector<float>& phi, int rank, int ranks) {
  if (spec.documents > kMostTokens / spec.shortest)
    throw ConfigError("--documents",
                      fmt::format("{} documents have at least {} tokens each, and a corpus may have {}; "
                                  "generate fewer documents",
                                  spec.documents, spec.shortest, kMostTokens));
  const auto topics = static_cast<size_t>(spec.model.topics), words = static_cast<size_t>(spec.model.words);
  std::vector<double> cumulative(topics * words);  // by topic
  for (size_t k = 0; k < topics; ++k) {
    double sum = 0;
    for (size_t w = 0; w < words; ++w) cumulative[k * words + w] = sum += phi[w * topics + k];
  }
  Corpus corpus;
  corpus.name = "a generated corpus";
  corpus.words = spec.model.words;
  corpus.documents = spec.documents;
  std::vector<double> theta(topics);
  for (int64_t d = spec.documents * rank / ranks; d < spec.documents * (rank + 1) / ranks; ++d) {
    RandomBits random(key_of(spec.seed, kDocumentKey, static_cast<uint64_t>(d)));
    draw_dirichlet(spec.model.alpha, random, theta);
    for (size_t k = 1; k < topics; ++k) theta[k] += theta[k - 1];
    const int64_t tokens =
        spec.shortest + random.below(static_cast<uint32_t>(spec.longest - spec.shortest + 1));
    for (int64_t i = 0; i < tokens; ++i) {
      const size_t k = draw_place(theta.data(), topics, random);
      corpus.word.push_back(static_cast<int32_t>(draw_place(&cumulative[k * words], words, random)));
    }
    if (std::ssize(corpus.word) > kMostTokens)
      throw ConfigError("--documents",
                        fmt::format("{} documents have more than {} tokens on a rank; generate "
                                    "fewer documents",
                                    spec.documents, kMostTokens));
    std::sort(corpus.word.end() - tokens, corpus.word.end());
    corpus.id.push_back(d);
    corpus.begin.push_back(static_cast<uint32_t>(corpus.word.size()));
  }
  return corpus;
}

}  // namespace starling
