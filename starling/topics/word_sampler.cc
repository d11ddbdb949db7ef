#include "starling/topics/word_sampler.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace starling {
namespace {

constexpr size_t kAhead = 8;  // tokens whose documents are loaded ahead

}  // namespace

WordSampler::WordSampler(const TopicModel& model, Documents& documents, int cycles)
    : model_(model),
      documents_(documents),
      alpha_(static_cast<float>(model.alpha)),
      states_(static_cast<size_t>(model.topics)),
      proposed_(2 * static_cast<size_t>(cycles)),
      topic_bits_((static_cast<size_t>(model.topics) + 63) / 64) {
  begin_sweep(model.beta);
}

void WordSampler::begin_sweep(double beta) {
  beta_ = static_cast<float>(beta);
  beta_sum_ = static_cast<float>(beta * model_.words);
}

void WordSampler::set_sizes(std::span<const int32_t> sizes) {
  std::vector<float> inverses(states_.size());
  for (size_t k = 0; k < states_.size(); ++k) {
    states_[k].size = sizes[k];
    states_[k].known_inverse = inverses[k] = 1 / (static_cast<float>(sizes[k]) + beta_sum_);
  }
  proposal_.set_inverses(std::move(inverses), beta_);
}

void WordSampler::begin_word(const Row& row) {
  for (size_t i = 0; i < row.index.size(); ++i) {
    State& s = states_[static_cast<size_t>(row.index[i])];
    s.count = s.known = row.value[i];
  }
  proposal_.begin_word(row);
}

void WordSampler::sort_new_topics() {
  if (new_topics_.size() < topic_bits_.size() / 4) {
    std::sort(new_topics_.begin(), new_topics_.end());
    return;
  }
  for (const int32_t k : new_topics_) topic_bits_[static_cast<size_t>(k) / 64] |= uint64_t{1} << (k % 64);
  new_topics_.clear();
  for (size_t i = 0; i < topic_bits_.size(); ++i) {
    for (uint64_t bits = std::exchange(topic_bits_[i], 0); bits != 0; bits &= bits - 1)
      new_topics_.push_back(static_cast<int32_t>(64 * i) + std::countr_zero(bits));
  }
}

void WordSampler::end_word(WordChange& change) {
  const auto take = [&](int32_t topic) {
    State& s = states_[static_cast<size_t>(topic)];
    if (s.count != s.known) {
      change.index.push_back(topic);
      change.change.push_back(s.count - s.known);
    }
    s.count = s.known = 0;
  };
  sort_new_topics();
  auto next = new_topics_.begin();
  for (const int32_t topic : proposal_.topics()) {
    for (; next != new_topics_.end() && *next < topic; ++next) take(*next);
    take(topic);
  }
  for (; next != new_topics_.end(); ++next) take(*next);
  new_topics_.clear();
}

int32_t WordSampler::draw_from_document(const Token& token, RandomBits& random) const {
  const uint32_t begin = documents_.begin(token.document);
  const uint32_t tokens = documents_.begin(token.document + 1) - begin;
  const uint64_t bits = random.next();
  const auto count = static_cast<float>(tokens);
  const float at =
      static_cast<float>(bits >> 40) * 0x1p-24F * (count + alpha_ * static_cast<float>(model_.topics));
  if (at < count) return documents_.topics()[begin + RandomBits::below(static_cast<uint32_t>(bits), tokens)];
  return static_cast<int32_t>(
      RandomBits::below(static_cast<uint32_t>(bits), static_cast<uint32_t>(model_.topics)));
}

bool WordSampler::accepts_from_document(int32_t topic, int32_t next, RandomBits& random) const {
  const State& s = states_[static_cast<size_t>(topic)];
  const State& t = states_[static_cast<size_t>(next)];
  const float up = (static_cast<float>(t.count) + beta_) * (static_cast<float>(s.size) + beta_sum_);
  const float down = (static_cast<float>(s.count) + beta_) * (static_cast<float>(t.size) + beta_sum_);
  return up >= down || static_cast<float>(random.uniform()) * down < up;
}

bool WordSampler::accepts_from_word(const Token& token, int32_t topic, int32_t next,
                                    RandomBits& random) const {
  const auto [in_s, in_t] =
      documents_.count_two(token.document, static_cast<Topic>(topic), static_cast<Topic>(next));
  const State& s = states_[static_cast<size_t>(topic)];
  const State& t = states_[static_cast<size_t>(next)];
  const float up = (static_cast<float>(in_t) + alpha_) * (static_cast<float>(t.count) + beta_) *
                   (static_cast<float>(s.size) + beta_sum_) * word_weight(s);
  const float down = (static_cast<float>(in_s) + alpha_) * (static_cast<float>(s.count) + beta_) *
                     (static_cast<float>(t.size) + beta_sum_) * word_weight(t);
  return up >= down || static_cast<float>(random.uniform()) * down < up;
}

void WordSampler::give(const Token& token, int32_t topic) {
  State& s = states_[static_cast<size_t>(topic)];
  if (s.count == 0 && s.known == 0) new_topics_.push_back(topic);
  ++s.count;
  ++s.size;
  documents_.set(token, static_cast<Topic>(topic));
}

void WordSampler::sample_token(const Token& token, RandomBits& random) {
  int32_t topic = documents_.topics()[token.place];
  State& s = states_[static_cast<size_t>(topic)];
  --s.count;
  --s.size;
  documents_.set(token, kNoTopic);  // now the counts exclude the token
  // No proposal depends on an earlier one. All are drawn first, so that their states are loaded meanwhile.
  for (size_t i = 0; i < proposed_.size(); i += 2) {
    proposed_[i] = draw_from_document(token, random);
    proposed_[i + 1] = proposal_.draw(random);
    if (proposed_[i] != kNoTopic) __builtin_prefetch(&states_[static_cast<size_t>(proposed_[i])]);
    __builtin_prefetch(&states_[static_cast<size_t>(proposed_[i + 1])]);
  }
  for (size_t i = 0; i < proposed_.size(); i += 2) {
    const int32_t a = proposed_[i], b = proposed_[i + 1];  // a may be kNoTopic, which is the token itself
    if (a != topic && a != kNoTopic && accepts_from_document(topic, a, random)) topic = a;
    if (b != topic && accepts_from_word(token, topic, b, random)) topic = b;
  }
  give(token, topic);
}

void WordSampler::sample(const Row& row, std::span<const Token> tokens, const TopicStart& start,
                         RandomBits random, WordChange& change, SamplerCounts& counts) {
  begin_word(row);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i + kAhead < tokens.size()) documents_.prefetch(tokens[i + kAhead].document);
    const Token& token = tokens[i];
    const Topic before = documents_.topics()[token.place];
    if (before == kNoTopic) {
      const int32_t first = start.draw(static_cast<int32_t>(row.key), random);
      give(token, first >= 0 ? first : proposal_.draw(random));
    } else {
      sample_token(token, random);
    }
    counts.moved += documents_.topics()[token.place] != before ? 1 : 0;
  }
  counts.tokens += std::ssize(tokens);
  end_word(change);
}

}  // namespace starling
