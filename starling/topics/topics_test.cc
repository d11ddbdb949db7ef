// Compares the samplers with exact conditional distributions and posteriors, runs on several ranks with the
// invariants of the counts, bytes with the formula, and resumed runs with runs that were not interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/server/local_row_store.h"
#include "starling/server/row_host.h"
#include "starling/server/row_message.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/temp_dir.h"
#include "starling/topics/corpus_split.h"
#include "starling/topics/generated_corpus.h"
#include "starling/topics/slices.h"
#include "starling/topics/sparse_sampler.h"
#include "starling/topics/topic_match.h"
#include "starling/topics/topic_score.h"
#include "starling/topics/train_topics.h"
#include "starling/topics/word_sampler.h"

namespace starling {
namespace {

using testing::HasSubstr;

Corpus corpus_of(int32_t words, const std::vector<std::vector<int32_t>>& documents) {
  Corpus corpus;
  corpus.name = "a test";
  corpus.words = words;
  corpus.documents = std::ssize(documents);
  for (const auto& document : documents) {
    corpus.id.push_back(std::ssize(corpus.id));
    corpus.word.insert(corpus.word.end(), document.begin(), document.end());
    corpus.begin.push_back(static_cast<uint32_t>(corpus.word.size()));
  }
  return corpus;
}

GeneratedCorpus small_corpus() {
  GeneratedCorpus spec;
  spec.model = {.topics = 10, .words = 300, .alpha = 0.1, .beta = 0.02};
  spec.documents = 400;
  spec.shortest = 30;
  spec.longest = 60;
  spec.seed = 3;
  return spec;
}

TopicOptions small_options() {
  TopicOptions options;
  options.model = small_corpus().model;
  options.sweeps = 30;
  options.warm_sweeps = 10;
  options.seed = 5;
  return options;
}

// What a run of some ranks has made.
struct SampledTopics {
  TopicResult result;                                    // of rank 0
  std::map<int64_t, std::vector<Topic>> topics;          // by document
  std::map<int64_t, std::map<int32_t, int32_t>> counts;  // the rows of the table
  std::vector<double> moved;                             // of each sweep
  uint64_t bytes = 0, expected_bytes = 0;  // of the row table, by the counters and by the formula
};

// Forwards to a store, and adds up what the messages of other shards take by the formula of row_message.h.
class FormulaStore final : public RowStore {
 public:
  FormulaStore(RowStore& store, int worker, int32_t width) : store_(store), worker_(worker), width_(width) {
    bytes_ = static_cast<uint64_t>(store.shards() - 1) * (56 + 40 + 56);
  }
  int32_t width() const override { return store_.width(); }
  bool totals() const override { return store_.totals(); }
  void push(std::span<const RowDelta> deltas) override {
    std::map<int64_t, std::map<int32_t, int32_t>> rows;
    std::vector<int64_t> order;
    for (const RowDelta& delta : deltas) {
      order.push_back(delta.key);
      for (size_t i = 0; i < delta.index.size(); ++i) {
        rows[delta.key][delta.index[i]] += delta.change[i];
        rows[kTotalsKey][delta.index[i]] += delta.change[i];
      }
    }
    order.push_back(kTotalsKey);
    std::map<int, std::pair<uint64_t, int64_t>> body;  // by shard: bytes, and the previous key
    for (const int64_t key : order) {
      std::erase_if(rows[key], [](const auto& element) { return element.second == 0; });
      if (rows[key].empty() || is_own(key)) continue;
      auto& [bytes, previous] = body[shard_of_key(key, shards())];
      bytes += varint_bytes(key_step(key, previous)) + bytes_of_row(rows[key]);
      previous = key;
    }
    for (const auto& [shard, part] : body) bytes_ += 56 + part.first;
    store_.push(deltas);
  }
  void restore(std::span<const RowDelta> rows) override { store_.restore(rows); }
  uint64_t start_pull(std::span<const int64_t> keys) override {
    std::map<int, std::pair<uint64_t, int64_t>> body;
    for (const int64_t key : keys) {
      if (is_own(key)) continue;
      auto& [bytes, previous] = body[shard_of_key(key, shards())];
      bytes += varint_bytes(key_step(key, previous));
      previous = key;
    }
    for (const auto& [shard, part] : body) bytes_ += 56 + 56 + part.first;
    return store_.start_pull(keys);
  }
  void wait(uint64_t pull, RowBatch& out) override {
    store_.wait(pull, out);
    for (size_t i = 0; i < out.size(); ++i) {
      if (is_own(out.row(i).key)) continue;
      std::map<int32_t, int32_t> row;
      for (size_t j = 0; j < out.row(i).index.size(); ++j) row[out.row(i).index[j]] = out.row(i).value[j];
      bytes_ += bytes_of_row(row);
    }
  }
  void clock() override {
    bytes_ += static_cast<uint64_t>(shards() - 1) * 56;
    store_.clock();
  }
  int64_t clocks() const override { return store_.clocks(); }
  int shards() const override { return store_.shards(); }
  void scan(int shard, const Visit& visit) override { store_.scan(shard, visit); }
  uint64_t bytes_sent() const override { return store_.bytes_sent(); }
  uint64_t bytes_received() const override { return store_.bytes_received(); }
  uint64_t bytes() const { return bytes_; }

 private:
  bool is_own(int64_t key) const { return shard_of_key(key, store_.shards()) == worker_; }
  // min(v(2n) + Σ [v(gap) + v(z(x))], 1 + Σ over all columns of v(z(x))), in plain loops.
  uint64_t bytes_of_row(const std::map<int32_t, int32_t>& row) const {
    const auto value_bytes = [](int32_t x) {
      uint64_t z = x >= 0 ? 2 * static_cast<uint64_t>(x) : 2 * static_cast<uint64_t>(-int64_t{x}) - 1, n = 1;
      for (; z >= 128; z /= 128) ++n;
      return n;
    };
    uint64_t sparse = varint_bytes(2 * row.size()), dense = 1;
    int32_t previous = -1;
    for (const auto& [index, value] : row) {
      sparse += varint_bytes(static_cast<uint64_t>(index - previous - 1)) + value_bytes(value);
      previous = index;
    }
    for (int32_t k = 0; k < width_; ++k) dense += value_bytes(row.contains(k) ? row.at(k) : 0);
    return std::min(sparse, dense);
  }

  RowStore& store_;
  const int worker_;
  const int32_t width_;
  uint64_t bytes_ = 0;
};

// Samples with ranks that are threads. corpus: of a rank. change: may change what a rank is given.
SampledTopics sample_on(int ranks, const TopicOptions& options,
                        const std::function<Corpus(int)>& corpus_of_rank,
                        const std::function<void(int, TopicParts&)>& change = {}) {
  SampledTopics sampled;
  std::mutex mutex;
  const SystemClock clock;
  run_ranks(ranks, [&](const ThreadRank& self) {
    const auto group = ranks == 1 ? make_single_group() : join_group(*self.store, self.rank, ranks);
    RowTableOptions table{.width = options.model.topics, .workers = ranks, .totals = true};
    if (change) table.staleness = ranks == 1 ? std::nullopt : table.staleness;
    table.memory_limit = shard_limit(options.memory_limit);
    ServerRendezvous rendezvous;
    rendezvous.workers = ranks;
    rendezvous.name = "topics";
    rendezvous.host_name = "node-a";
    const auto host =
        ranks == 1 ? nullptr : std::make_unique<RowHost>(*self.store, rendezvous, self.rank, table);
    const auto local = ranks == 1 ? std::make_unique<LocalRowStore>(table) : nullptr;
    FormulaStore rows(ranks == 1 ? static_cast<RowStore&>(*local) : host->rows(), self.rank, table.width);
    const Corpus corpus = corpus_of_rank(self.rank);
    TopicParts parts{.group = *group, .corpus = corpus, .rows = rows, .clock = clock};
    std::vector<Topic> last;
    std::vector<double> moved;
    parts.on_topics = [&](std::span<const Topic> topics) { last.assign(topics.begin(), topics.end()); };
    parts.on_sweep = [&](const TopicSweep& sweep) { moved.push_back(sweep.moved); };
    uint64_t bytes = 0, expected = 0;
    if (change) change(self.rank, parts);
    const auto outer = parts.on_sweep;
    parts.on_sweep = [&](const TopicSweep& sweep) {
      bytes = rows.bytes_sent() + rows.bytes_received(), expected = rows.bytes();
      outer(sweep);
    };
    const TopicResult result = train_topics(options, parts);
    {
      const std::lock_guard lock(mutex);
      sampled.bytes += bytes;
      sampled.expected_bytes += expected;
      for (size_t d = 0; d < corpus.count() && !last.empty(); ++d)
        sampled.topics[corpus.id[d]].assign(last.begin() + corpus.begin[d],
                                            last.begin() + corpus.begin[d + 1]);
      if (self.rank == 0) {
        sampled.result = result;
        sampled.moved = moved;
        for (int s = 0; s < rows.shards(); ++s) {
          rows.scan(s, [&](const RowBatch& batch) {
            for (size_t i = 0; i < batch.size(); ++i) {
              const Row row = batch.row(i);
              for (size_t j = 0; j < row.index.size(); ++j)
                sampled.counts[row.key][row.index[j]] = row.value[j];
            }
          });
        }
      }
    }
    barrier(*group);
    if (host) host->finish();
  });
  return sampled;
}

std::function<Corpus(int)> generated_on(int ranks, const GeneratedCorpus& spec = small_corpus()) {
  const auto phi = std::make_shared<std::vector<float>>(true_topics(spec));
  return [=](int rank) { return generate_corpus(spec, *phi, rank, ranks); };
}

// Counts in plain loops.
std::map<int64_t, std::map<int32_t, int32_t>> counts_of(const Corpus& whole, const SampledTopics& sampled) {
  std::map<int64_t, std::map<int32_t, int32_t>> counts;
  for (size_t d = 0; d < whole.count(); ++d) {
    const std::vector<Topic>& topics = sampled.topics.at(whole.id[d]);
    for (size_t i = 0; i < topics.size(); ++i) {
      ++counts[whole.document(d)[i]][topics[i]];
      ++counts[kTotalsKey][topics[i]];
    }
  }
  return counts;
}

TEST(AliasTable, DrawsInProportionToTheWeights) {
  for (const auto& weights : {std::vector<float>{1, 2, 3, 4}, {5}, {0, 1, 0, 9, 0.5F}, {1, 1, 1}}) {
    AliasTable table;
    table.build(std::vector<float>{9, 9, 9, 9, 9, 9, 9, 1});  // its memory is used again
    const double sum = table.build(weights);
    EXPECT_NEAR(sum, std::accumulate(weights.begin(), weights.end(), 0.0), 1e-6);
    std::vector<double> drawn(weights.size(), 0);
    RandomBits random(7);
    constexpr int kDraws = 200'000;
    for (int i = 0; i < kDraws; ++i) drawn[table.draw(random)] += 1.0 / kDraws;
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_NEAR(drawn[i], weights[i] / sum, 0.005) << i;
      if (weights[i] == 0) {
        EXPECT_EQ(drawn[i], 0);
      }
    }
  }
}

TEST(Documents, CountsEqualThoseOfAPlainLoop) {
  std::vector<std::vector<int32_t>> words = {{0, 0, 1}, {}, std::vector<int32_t>(3000, 1), {0, 1}};
  const Corpus corpus = corpus_of(2, words);
  for (const int32_t topics : {5, 20'000}) {  // the long document has a table, or not
    Documents documents(corpus, topics);
    RandomBits random(3);
    for (int i = 0; i < 5000; ++i) {
      const auto list = documents.tokens_of(static_cast<int32_t>(random.below(2)));
      documents.set(list[random.below(static_cast<uint32_t>(list.size()))],
                    static_cast<Topic>(random.below(5)));
    }
    std::vector<Topic> topic(documents.topics().begin(), documents.topics().end());
    Documents copy(corpus, topics);
    copy.assign(topic);
    for (uint32_t d = 0; d < 4; ++d) {
      const auto of = documents.topics_of(d);
      for (Topic a = 0; a < 5; ++a) {
        const auto b = static_cast<Topic>((a + 2) % 5);
        const std::pair<uint32_t, uint32_t> expected = {std::count(of.begin(), of.end(), a),
                                                        std::count(of.begin(), of.end(), b)};
        EXPECT_EQ(documents.count_two(d, a, b), expected);
        EXPECT_EQ(copy.count_two(d, a, b), expected);
      }
    }
  }
}

TEST(Slices, CoverTheWordsAndNoTwoRanksShareOne) {
  std::vector<int64_t> tokens;
  for (int w = 0; w < 500; ++w) tokens.push_back(w % 7 == 0 ? 0 : 1 + 20'000 / (w + 1));
  for (const int ranks : {1, 2, 3, 4}) {
    for (const uint64_t limit : {uint64_t{0}, uint64_t{2000}}) {
      const std::vector<WordSlice> slices = cut_words(tokens, 50, ranks, 0, limit);
      EXPECT_EQ(slices.size() % static_cast<size_t>(ranks), 0);
      if (ranks > 1) {
        EXPECT_GE(slices.size(), 2 * static_cast<size_t>(ranks));
      }
      int32_t next = 0;
      for (const WordSlice& slice : slices) {
        EXPECT_EQ(slice.begin, next);
        next = slice.end;
        uint64_t bytes = 0;
        for (int32_t w = slice.begin; w < slice.end; ++w)
          bytes += most_row_memory(tokens[static_cast<size_t>(w)], 50);
        if (limit > 0) {
          EXPECT_LE(bytes, limit);
        }
      }
      EXPECT_EQ(next, 500);
      for (size_t step = 0; step < slices.size(); ++step) {
        std::vector<size_t> at;
        for (int r = 0; r < ranks; ++r) at.push_back(slice_of_step(step, r, ranks, slices.size()));
        std::sort(at.begin(), at.end());
        EXPECT_EQ(std::adjacent_find(at.begin(), at.end()), at.end());
      }
    }
  }
  EXPECT_THROW(cut_words(tokens, 50, 1, 0, 100), ConfigError);
}

// The proposals of a word come from an alias table of old counts. Whatever these are, the topics of a token
// have the distribution of the collapsed Gibbs sampler if all other topics stay.
TEST(WordSampler, ATokenHasItsExactConditionalDistribution) {
  const TopicModel model{.topics = 4, .words = 3, .alpha = 0.3, .beta = 0.2};
  const Corpus corpus = corpus_of(3, {{0, 0, 0, 1, 2}, {0, 1, 1, 2, 2, 2}, {0, 0, 2}});
  Documents documents(corpus, model.topics);
  const std::vector<Topic> topics = {0, 1, 1, 2, 0, 3, 3, 1, 1, 0, 2, 0, 2, 1};
  documents.assign(topics);
  std::vector<int32_t> sizes(4, 0), counts(4, 0);
  for (size_t i = 0; i < topics.size(); ++i) {
    ++sizes[topics[i]];
    if (corpus.word[i] == 0) ++counts[topics[i]];
  }
  const auto tokens = documents.tokens_of(0);
  const Token token = tokens[1];
  std::vector<double> exact;
  for (int k = 0; k < 4; ++k) {
    const int own = topics[token.place] == k ? 1 : 0;
    int in_document = -own;
    for (const Topic t : documents.topics_of(token.document)) in_document += t == k ? 1 : 0;
    exact.push_back((in_document + model.alpha) * (counts[static_cast<size_t>(k)] - own + model.beta) /
                    (sizes[static_cast<size_t>(k)] - own + 3 * model.beta));
  }
  const double sum = std::accumulate(exact.begin(), exact.end(), 0.0);
  WordSampler sampler(model, documents, 1);
  sampler.set_sizes(sizes);
  RowBatch batch;
  batch.begin_row(0);
  for (int k = 0; k < 4; ++k)
    if (counts[static_cast<size_t>(k)] > 0) batch.add(k, counts[static_cast<size_t>(k)]);
  sampler.begin_word(batch.row(0));
  RandomBits random(11);
  std::vector<double> found(4, 0);
  constexpr int kDraws = 400'000;
  for (int i = 0; i < kDraws; ++i) {
    sampler.sample_token(token, random);
    found[documents.topics()[token.place]] += 1.0 / kDraws;
  }
  for (size_t k = 0; k < 4; ++k) EXPECT_NEAR(found[k], exact[k] / sum, 0.004) << k;
  // Now the other tokens move, too, and the changes are those of the counts.
  for (int i = 0; i < 500; ++i) sampler.sample_token(tokens[random.below(6)], random);
  WordChange change;
  sampler.end_word(change);
  for (size_t i = 0; i < change.index.size(); ++i)
    counts[static_cast<size_t>(change.index[i])] += change.change[i];
  for (const Token& t : tokens) --counts[documents.topics()[t.place]];
  EXPECT_EQ(counts, std::vector<int32_t>(4, 0));
  for (int k = 0; k < 4; ++k)
    EXPECT_EQ(sampler.size(k), std::count(documents.topics().begin(), documents.topics().end(), k));
}

// All topics are drawn from old counts, which include the token.
TEST(SparseSampler, ATokenHasItsExactDistribution) {
  const TopicModel model{.topics = 4, .words = 3, .alpha = 0.3, .beta = 0.2};
  const Corpus corpus = corpus_of(3, {{0, 0, 0, 1, 2}, {0, 1, 1, 2, 2, 2}, {0, 0, 2}});
  Documents documents(corpus, model.topics);
  const std::vector<Topic> topics = {0, 1, 1, 2, 0, 3, 3, 1, 1, 0, 2, 0, 2, 1};
  documents.assign(topics);
  SparseSampler sampler(model, documents);
  const std::vector<int32_t> sizes = {4, 5, 3, 2};
  sampler.set_sizes(sizes);
  for (const int32_t word : {0, 2, 0}) {
    std::vector<int32_t> counts(4, 0);
    for (size_t i = 0; i < topics.size(); ++i) counts[topics[i]] += corpus.word[i] == word ? 1 : 0;
    RowBatch batch;
    batch.begin_row(word);
    for (int k = 0; k < 4; ++k)
      if (counts[static_cast<size_t>(k)] > 0) batch.add(k, counts[static_cast<size_t>(k)]);
    sampler.begin_word(batch.row(0));
    for (uint32_t d = 0; d < 3; ++d) {
      std::vector<double> exact(4), found(4, 0);
      const auto of = documents.topics_of(d);
      for (size_t k = 0; k < 4; ++k)
        exact[k] = (static_cast<double>(std::count(of.begin(), of.end(), k)) + model.alpha) *
                   (counts[k] + model.beta) / (sizes[k] + 3 * model.beta);
      const double sum = std::accumulate(exact.begin(), exact.end(), 0.0);
      RandomBits random(word + 10 * d);
      constexpr int kDraws = 200'000;
      for (int i = 0; i < kDraws; ++i) found[static_cast<size_t>(sampler.draw(d, random))] += 1.0 / kDraws;
      for (size_t k = 0; k < 4; ++k)
        EXPECT_NEAR(found[k], exact[k] / sum, 0.005) << word << ' ' << d << ' ' << k;
    }
    sampler.end_word();
  }
}

// log p(words, topics) up to a constant.
double log_joint(const Corpus& corpus, const std::vector<Topic>& topics, const TopicModel& model) {
  std::vector<std::map<int, int>> in_topic(static_cast<size_t>(model.topics));
  std::vector<int> sizes(static_cast<size_t>(model.topics), 0);
  double sum = 0;
  for (size_t d = 0; d < corpus.count(); ++d) {
    std::map<int, int> in_document;
    for (uint32_t i = corpus.begin[d]; i < corpus.begin[d + 1]; ++i) {
      const auto k = topics[i];
      sum += std::log(in_document[k]++ + model.alpha);
      sum += std::log(in_topic[k][corpus.word[i]]++ + model.beta);
      sum -= std::log(sizes[k]++ + model.words * model.beta);
    }
  }
  return sum;
}

TEST(TrainTopics, SweepsAreCloseToTheExactPosteriorOfATinyCorpus) {
  const Corpus corpus = corpus_of(3, {{0, 0, 1}, {1, 2, 2}, {0, 1, 2}});
  TopicOptions options;
  options.model = {.topics = 2, .words = 3, .alpha = 0.7, .beta = 0.6};
  options.sweeps = 120'000;
  options.warm_sweeps = 0;
  options.anchors = false;
  std::map<std::vector<Topic>, double> exact, found;
  double sum = 0;
  for (int state = 0; state < 512; ++state) {
    std::vector<Topic> topics;
    for (int i = 0; i < 9; ++i) topics.push_back(static_cast<Topic>(state >> i & 1));
    sum += exact[topics] = std::exp(log_joint(corpus, topics, options.model));
  }
  sample_on(
      1, options, [&](int) { return Corpus(corpus); },
      [&](int, TopicParts& parts) {
        parts.on_topics = [&](std::span<const Topic> topics) {
          found[{topics.begin(), topics.end()}] += 1.0 / static_cast<double>(options.sweeps);
        };
      });
  double distance = 0, uniform = 0;
  for (const auto& [topics, p] : exact) {
    distance += std::abs(p / sum - found[topics]) / 2;
    uniform += std::abs(p / sum - 1.0 / 512) / 2;
  }
  EXPECT_GT(uniform, 0.3);
  // The proposals of a word know the tokens that they are for, which is an error of LightLDA of the order of
  // 1 / n_w. Here words have three tokens. Uniform states are at a distance of 0.34.
  EXPECT_LT(distance, 0.1);
}

TEST(TrainTopics, EveryNumberOfRanksKeepsTheCountsAndSendsTheBytesOfTheFormula) {
  const Corpus whole = generated_on(1)(0);
  for (const auto& [ranks, sampler] : {std::pair{1, SamplerKind::kLight},
                                       {2, SamplerKind::kLight},
                                       {3, SamplerKind::kLight},
                                       {1, SamplerKind::kSaber},
                                       {3, SamplerKind::kSaber}}) {
    TopicOptions options = small_options();
    options.sampler = sampler;
    options.sweeps = 4;
    options.slices = 6;
    const SampledTopics sampled = sample_on(ranks, options, generated_on(ranks));
    ASSERT_EQ(sampled.topics.size(), whole.count());
    EXPECT_EQ(sampled.counts, counts_of(whole, sampled)) << ranks;
    EXPECT_EQ(sampled.bytes, ranks == 1 ? 0 : sampled.expected_bytes) << ranks;
    EXPECT_EQ(sampled.result.tokens, std::ssize(whole.word));
    EXPECT_EQ(sampled.result.sweeps, 4);
    EXPECT_EQ(sampled.moved[0], 1);  // no token had a topic
    EXPECT_LT(sampled.moved[3], 1);
    uint64_t elements = 0;
    for (const auto& [word, row] : sampled.counts) elements += word == kTotalsKey ? 0 : row.size();
    EXPECT_EQ(sampled.result.model_bytes, 8 * elements);
    const SampledTopics again = sample_on(ranks, options, generated_on(ranks));
    EXPECT_EQ(again.topics, sampled.topics);
  }
}

TEST(TrainTopics, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  for (const int ranks : {1, 2}) {
    const TempDir folder;
    TopicOptions options = small_options();
    options.sweeps = 8;
    const SampledTopics straight = sample_on(ranks, options, generated_on(ranks));
    options.checkpoint = folder.file("ck");
    std::atomic<bool> stop = false;
    const SampledTopics first =
        sample_on(ranks, options, generated_on(ranks), [&](int rank, TopicParts& parts) {
          if (rank != 0) return;
          parts.stop = &stop;
          parts.on_topics = [&, sweep = 0](std::span<const Topic>) mutable { stop = ++sweep >= 2; };
        });
    EXPECT_TRUE(first.result.interrupted);
    EXPECT_EQ(first.result.sweeps, 3);
    const SampledTopics rest = sample_on(ranks, options, generated_on(ranks));
    EXPECT_EQ(rest.result.resumed_from, 3);
    EXPECT_EQ(rest.topics, straight.topics);
    EXPECT_EQ(rest.counts, straight.counts);
    // Another number of ranks goes on, too.
    options.sweeps = 10;
    const SampledTopics other = sample_on(3, options, generated_on(3));
    EXPECT_EQ(other.result.resumed_from, 8);
    EXPECT_EQ(other.counts, counts_of(generated_on(1)(0), other));
    options.model.beta = 0.5;
    try {
      sample_on(1, options, generated_on(1));
      ADD_FAILURE() << "a checkpoint of another β was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("beta is 0.02 there and 0.5 here"));
    }
  }
}

// Fits topics by the collapsed Gibbs sampler in plain loops. Returns φ at [w · K + k].
std::vector<float> plain_gibbs(const Corpus& corpus, const TopicModel& model, int sweeps) {
  const auto topics = static_cast<size_t>(model.topics);
  std::vector<int> topic(corpus.word.size(), -1), in_topic(topics * static_cast<size_t>(model.words), 0);
  std::vector<int> sizes(topics, 0);
  std::vector<double> p(topics);
  RandomBits random(1);
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    for (size_t d = 0; d < corpus.count(); ++d) {
      std::vector<int> in_document(topics, 0);
      for (uint32_t i = corpus.begin[d]; i < corpus.begin[d + 1]; ++i)
        if (topic[i] >= 0) ++in_document[static_cast<size_t>(topic[i])];
      for (uint32_t i = corpus.begin[d]; i < corpus.begin[d + 1]; ++i) {
        int* row = &in_topic[static_cast<size_t>(corpus.word[i]) * topics];
        const auto change = [&](int by) {
          const auto k = static_cast<size_t>(topic[i]);
          row[k] += by, sizes[k] += by, in_document[k] += by;
        };
        if (topic[i] >= 0) change(-1);
        double sum = 0;
        for (size_t k = 0; k < topics; ++k)
          p[k] = sum +=
              (in_document[k] + model.alpha) * (row[k] + model.beta) / (sizes[k] + model.words * model.beta);
        const double at = random.uniform() * sum;
        topic[i] = static_cast<int>(std::upper_bound(p.begin(), p.end() - 1, at) - p.begin());
        change(1);
      }
    }
  }
  std::vector<float> phi(in_topic.size());
  for (size_t w = 0; w < static_cast<size_t>(model.words); ++w) {
    for (size_t k = 0; k < topics; ++k)
      phi[w * topics + k] =
          static_cast<float>((in_topic[w * topics + k] + model.beta) / (sizes[k] + model.words * model.beta));
  }
  return phi;
}

TEST(TrainTopics, FindsTheTopicsOfAGeneratedCorpusOnEveryNumberOfRanks) {
  GeneratedCorpus spec = small_corpus();
  spec.documents = 1000;  // With few documents on rank 0, it finds worse anchors.
  const std::vector<float> truth = true_topics(spec);
  const auto [training, held_out] = split_corpus(generate_corpus(spec, truth, 0, 1), 0.1);
  const ScoreOptions how{.topics = 10, .alpha = spec.model.alpha};
  const auto alone = make_single_group();
  const double known = score_topics(*alone, held_out, topics_of_matrix(truth, 10), how).perplexity;
  const std::vector<float> plain = plain_gibbs(training, spec.model, 200);
  const double gibbs = score_topics(*alone, held_out, topics_of_matrix(plain, 10), how).perplexity;
  for (const auto& [ranks, sampler] :
       {std::pair{1, SamplerKind::kLight}, {3, SamplerKind::kLight}, {2, SamplerKind::kSaber}}) {
    TopicOptions options = small_options();
    options.sampler = sampler;
    options.sweeps = 60;
    options.warm_sweeps = 20;
    double perplexity = 0;
    std::vector<double> cosines;
    const auto part_of_rank = [&, count = ranks](int rank) {
      return split_corpus(generated_on(count, spec)(rank), 0.1).first;
    };
    const SampledTopics sampled = sample_on(ranks, options, part_of_rank, [&](int rank, TopicParts& parts) {
      RowStore* rows = &parts.rows;
      if (rank != 0) return;
      parts.on_sweep = [&, rows](const TopicSweep& sweep) {
        if (sweep.sweep < 60) return;
        perplexity = score_topics(*alone, held_out, topics_of_counts(*rows, options.model), how).perplexity;
        cosines = match_topics(*alone, truth, 300, 10, topics_of_counts(*rows, options.model));
      };
    });
    EXPECT_EQ(sampled.result.anchors, 10);
    // SaberLDA's counts include the token, which favors the topic that it has.
    const double slack = sampler == SamplerKind::kLight ? 1 : 1.08;
    EXPECT_LT(perplexity, 1.05 * slack * known) << ranks;
    EXPECT_LT(perplexity, 1.02 * slack * gibbs) << ranks;
    EXPECT_GE(std::count_if(cosines.begin(), cosines.end(), [](double c) { return c >= 0.9; }), 9) << ranks;
  }
}

TEST(TrainTopics, AModelLargerThanTheLimitOfARankTrains) {
  TopicOptions options = small_options();
  options.model = {.topics = 60, .words = 600, .alpha = 0.2, .beta = 0.01};
  options.sweeps = 3;
  GeneratedCorpus spec = small_corpus();
  spec.model = {.topics = 20, .words = 600, .alpha = 1, .beta = 1};
  spec.documents = 600;
  options.anchors = false;
  const SampledTopics free = sample_on(4, options, generated_on(4, spec));
  options.memory_limit = free.result.model_bytes * 9 / 10;
  const SampledTopics limited = sample_on(4, options, generated_on(4, spec));
  EXPECT_GT(limited.result.slices.size(), free.result.slices.size());
  EXPECT_LT(limited.result.slice_bytes, options.memory_limit / 2);
  EXPECT_GT(limited.result.model_bytes, options.memory_limit);
  options.memory_limit = 20'000;
  EXPECT_THROW(sample_on(4, options, generated_on(4, spec)), Error);
  options.memory_limit = 1000;
  EXPECT_THROW(sample_on(4, options, generated_on(4, spec)), ConfigError);
}

TEST(TopicScore, EqualsPlainLoops) {
  const GeneratedCorpus spec = small_corpus();
  const auto truth = true_topics(spec);
  std::vector<float> phi = truth;
  for (float& p : phi) p = 0.9F * p + 0.1F / 300;
  const Corpus held_out = split_corpus(generate_corpus(spec, truth, 0, 1), 0.2).second;
  double sum = 0;
  int64_t tokens = 0;
  for (size_t d = 0; d < held_out.count(); ++d) {
    const auto [first, second] = halves_of(held_out, d);
    EXPECT_EQ(first.size() + second.size(), held_out.document(d).size());
    std::vector<int32_t> both = first;
    both.insert(both.end(), second.begin(), second.end());
    std::sort(both.begin(), both.end());
    EXPECT_TRUE(std::equal(both.begin(), both.end(), held_out.document(d).begin()));
    std::vector<double> theta(10, 0.1);
    const auto p = [&](int32_t w) {
      double all = 0;
      for (size_t k = 0; k < 10; ++k)
        all += theta[k] * static_cast<double>(phi[static_cast<size_t>(w) * 10 + k]);
      return all;
    };
    for (int i = 0; i < 50; ++i) {
      std::vector<double> next(10, 0.1);
      for (const int32_t w : first) {
        for (size_t k = 0; k < 10; ++k)
          next[k] += theta[k] * static_cast<double>(phi[static_cast<size_t>(w) * 10 + k]) / p(w);
      }
      const double all = std::accumulate(next.begin(), next.end(), 0.0);
      for (size_t k = 0; k < 10; ++k) theta[k] = next[k] / all;
    }
    for (const int32_t w : second) sum += std::log(p(w)), ++tokens;
  }
  const double expected = std::exp(-sum / static_cast<double>(tokens));
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](const ThreadRank& self) {
      const auto group = ranks == 1 ? make_single_group() : join_group(*self.store, self.rank, ranks);
      const Corpus own = split_corpus(generate_corpus(spec, truth, self.rank, ranks), 0.2).second;
      const TopicScore score = score_topics(*group, own, topics_of_matrix(phi, 10),
                                            {.topics = 10, .alpha = 0.1, .words_at_once = 90});
      EXPECT_NEAR(score.perplexity / expected, 1, 1e-4);
      EXPECT_EQ(score.tokens, tokens);
      EXPECT_EQ(score.documents, std::ssize(held_out.id));
    });
  }
}

TEST(TopicMatch, TheAssignmentIsTheBestOfAllPermutations) {
  RandomBits random(2);
  for (int n = 1; n <= 6; ++n) {
    std::vector<double> values(static_cast<size_t>(n * n));
    for (double& v : values) v = random.uniform();
    std::vector<int32_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    const auto sum_of = [&](const std::vector<int32_t>& columns) {
      double sum = 0;
      for (size_t i = 0; i < columns.size(); ++i)
        sum += values[i * columns.size() + static_cast<size_t>(columns[i])];
      return sum;
    };
    double best = 0;
    do best = std::max(best, sum_of(order));
    while (std::next_permutation(order.begin(), order.end()));
    const std::vector<int32_t> found = best_assignment(values, n);
    EXPECT_NEAR(sum_of(found), best, 1e-12);
    std::sort(order.begin(), order.end());
    EXPECT_TRUE(std::is_permutation(found.begin(), found.end(), order.begin()));
  }
}

}  // namespace
}  // namespace starling
