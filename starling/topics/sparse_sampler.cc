#include "starling/topics/sparse_sampler.h"

#include <algorithm>
#include <utility>

namespace starling {
namespace {

constexpr size_t kAhead = 8;  // tokens whose documents are loaded ahead

}  // namespace

SparseSampler::SparseSampler(const TopicModel& model, Documents& documents)
    : model_(model),
      documents_(documents),
      sizes_(static_cast<size_t>(model.topics)),
      phi_(sizes_.size()),
      changes_(sizes_.size()),
      counts_(sizes_.size()) {
  begin_sweep(model.beta);
}

void SparseSampler::begin_sweep(double beta) {
  beta_ = beta;
  begin_.assign(1, 0);
  shares_.clear();
  std::vector<Topic> seen;
  for (size_t d = 0; d < documents_.count(); ++d) {
    seen.clear();
    for (const Topic k : documents_.topics_of(d)) {
      if (k != kNoTopic && counts_[k]++ == 0) seen.push_back(k);
    }
    for (const Topic k : seen) shares_.push_back({k, std::exchange(counts_[k], 0)});
    begin_.push_back(static_cast<uint32_t>(shares_.size()));
  }
}

void SparseSampler::set_sizes(std::span<const int32_t> sizes) {
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  std::vector<float> inverses(sizes.size());
  for (size_t k = 0; k < sizes.size(); ++k) {
    inverses[k] = static_cast<float>(1 / (sizes[k] + beta_ * model_.words));
    phi_[k] = static_cast<float>(beta_) * inverses[k];
  }
  proposal_.set_inverses(std::move(inverses), beta_);
}

void SparseSampler::begin_word(const Row& row) {
  proposal_.begin_word(row);
  for (size_t i = 0; i < row.index.size(); ++i) {
    const auto k = static_cast<size_t>(row.index[i]);
    phi_[k] = (static_cast<float>(row.value[i]) + static_cast<float>(beta_)) * proposal_.inverses()[k];
  }
}

void SparseSampler::end_word() {
  for (const int32_t topic : proposal_.topics()) {
    const auto k = static_cast<size_t>(topic);
    phi_[k] = static_cast<float>(beta_) * proposal_.inverses()[k];
  }
}

int32_t SparseSampler::draw(uint32_t document, RandomBits& random) const {
  const std::span<const Share> shares(shares_.data() + begin_[document],
                                      begin_[document + 1] - begin_[document]);
  float sum = 0;
  for (const Share& share : shares) sum += static_cast<float>(share.count) * phi_[share.topic];
  auto at =
      static_cast<float>(random.uniform() * (static_cast<double>(sum) + model_.alpha * proposal_.sum()));
  if (!(at < sum)) return proposal_.draw(random);
  for (const Share& share : shares) {
    at -= static_cast<float>(share.count) * phi_[share.topic];
    if (at < 0) return share.topic;
  }
  return shares.back().topic;
}

void SparseSampler::sample(const Row& row, std::span<const Token> tokens, const TopicStart& start,
                           RandomBits random, WordChange& change, SamplerCounts& counts) {
  begin_word(row);
  const auto add = [&](int32_t topic, int32_t by) {
    int32_t& value = changes_[static_cast<size_t>(topic)];
    if (value == 0) changed_.push_back(topic);  // a topic may be in the list twice
    value += by;
    sizes_[static_cast<size_t>(topic)] += by;
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i + kAhead < tokens.size()) __builtin_prefetch(shares_.data() + begin_[tokens[i + kAhead].document]);
    const Token& token = tokens[i];
    const Topic before = documents_.topics()[token.place];
    int32_t topic = before == kNoTopic ? start.draw(static_cast<int32_t>(row.key), random) : -1;
    if (topic < 0) topic = draw(token.document, random);
    if (topic == before) continue;
    ++counts.moved;
    if (before != kNoTopic) add(before, -1);
    add(topic, 1);
    documents_.set(token, static_cast<Topic>(topic));
  }
  counts.tokens += std::ssize(tokens);
  std::sort(changed_.begin(), changed_.end());
  for (const int32_t topic : changed_) {
    const int32_t by = std::exchange(changes_[static_cast<size_t>(topic)], 0);
    if (by == 0) continue;
    change.index.push_back(topic);
    change.change.push_back(by);
  }
  changed_.clear();
  end_word();
}

}  // namespace starling
