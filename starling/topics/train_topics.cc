#include "starling/topics/train_topics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/server/row_options.h"
#include "starling/topics/anchor_start.h"
#include "starling/topics/sparse_sampler.h"
#include "starling/topics/topic_checkpoint.h"
#include "starling/topics/word_sampler.h"

namespace starling {
namespace {

// β begins at this times the mean number of tokens of a word with a topic, N / (K V).
constexpr double kFirstBeta = 2;
constexpr int64_t kMostSweeps = int64_t{1} << 40;
constexpr Nanoseconds kToldEvery = std::chrono::milliseconds(200);
constexpr uint64_t kSampleKey = 0x73616D706C65;  // tells the streams of one seed apart

// Sums whole numbers over the ranks.
void add_over_ranks(Group& group, std::span<int64_t> numbers) {
  if (group.size() > 1 && !numbers.empty())
    all_reduce(group, numbers.data(), numbers.size(), DataType::kInt64, ReduceOp::kSum);
}

// Finds the start on rank 0. The others wait, and hear from rank 0 about 5 times a second, so that no wait
// takes longer than the timeout of the group. Returns false if `stop` ended the search. Collective.
bool find_start(const TopicParts& parts, const Documents& documents, int32_t topics, TopicStart& start) {
  constexpr int64_t kGoOn = 0, kDone = 1, kStopped = 2;
  const auto tell = [&](int64_t& word) {
    if (parts.group.size() > 1) broadcast(parts.group, &word, 1, DataType::kInt64, 0);
  };
  int64_t word = kGoOn;
  if (parts.group.rank() != 0) {
    while (word == kGoOn) tell(word);
    return word == kDone;
  }
  Nanoseconds told = parts.clock.now();
  start = anchor_start(parts.corpus, documents, topics, [&] {
    if (parts.stop != nullptr && parts.stop->load()) word = kStopped;
    if (word == kGoOn && parts.clock.now() - told >= kToldEvery) tell(word), told = parts.clock.now();
    return word == kGoOn;
  });
  if (word == kGoOn) word = kDone;
  tell(word);
  return word == kDone;
}

// Sends the start of rank 0 to all ranks.
void share_start(Group& group, TopicStart& start) {
  if (group.size() == 1) return;
  int64_t sizes[] = {std::ssize(start.begin), std::ssize(start.choices), std::ssize(start.anchors)};
  broadcast(group, sizes, std::size(sizes), DataType::kInt64, 0);
  start.begin.resize(static_cast<size_t>(sizes[0]));
  start.choices.resize(static_cast<size_t>(sizes[1]));
  start.anchors.resize(static_cast<size_t>(sizes[2]));
  const auto send_all = [&](auto& values) {
    if (!values.empty())
      broadcast(group, values.data(), values.size() * sizeof(values[0]), DataType::kUint8, 0);
  };
  send_all(start.begin);
  send_all(start.choices);
  send_all(start.anchors);
}

// The changes of the rows of a slice.
class SliceChanges {
 public:
  void clear() { all_.clear(), ends_.clear(), words_.clear(); }
  // Where the next word's changes are appended. Call close() afterwards.
  WordChange& open() { return all_; }
  void close(int32_t word) {
    const size_t from = ends_.empty() ? 0 : ends_.back();
    if (all_.index.size() == from) return;
    words_.push_back(word);
    ends_.push_back(all_.index.size());
  }
  void push_to(RowStore& rows) const {
    std::vector<RowDelta> deltas;
    for (size_t i = 0, from = 0; i < words_.size(); from = ends_[i++])
      deltas.push_back({words_[i], std::span(all_.index).subspan(from, ends_[i] - from),
                        std::span(all_.change).subspan(from, ends_[i] - from)});
    rows.push(deltas);
  }
  uint64_t bytes() const { return 8 * all_.index.size(); }

 private:
  WordChange all_;
  std::vector<size_t> ends_;
  std::vector<int32_t> words_;
};

std::unique_ptr<TopicSampler> make_sampler(const TopicOptions& options, Documents& documents) {
  if (options.sampler == SamplerKind::kSaber)
    return std::make_unique<SparseSampler>(options.model, documents);
  return std::make_unique<WordSampler>(options.model, documents, options.cycles);
}

class TopicRun {
 public:
  TopicRun(const TopicOptions& options, const TopicParts& parts)
      : options_(options),
        parts_(parts),
        begin_(parts.clock.now()),
        documents_(parts.corpus, options.model.topics),
        sampler_(make_sampler(options, documents_)),
        checkpoint_(options, parts) {
    word_tokens_.resize(static_cast<size_t>(options.model.words));
    for (size_t w = 0; w < word_tokens_.size(); ++w)
      word_tokens_[w] = std::ssize(documents_.tokens_of(static_cast<int32_t>(w)));
    add_over_ranks(parts.group, word_tokens_);
    for (const int64_t n : word_tokens_) result_.tokens += n;
    check_tokens(result_.tokens, parts.corpus.name);
    result_.slices = cut_words(word_tokens_, options.model.topics, parts.group.size(), options.slices,
                               slice_limit(options.memory_limit));
  }

  TopicResult run() {
    result_.resumed_from = checkpoint_.resume(documents_);
    if (result_.resumed_from >= 0) {
      result_.sweeps = result_.resumed_from;
      push_all();
      if (parts_.on_resumed && parts_.group.rank() == 0) parts_.on_resumed(result_.sweeps);
    } else {
      begin_topics();
    }
    result_.start_seconds = to_seconds(parts_.clock.now() - begin_);
    while (result_.sweeps < options_.sweeps && !result_.interrupted) {
      const TopicSweep done = sweep();
      result_.interrupted = stop_ && result_.sweeps < options_.sweeps;
      if (parts_.on_topics) parts_.on_topics(documents_.topics());
      // The checkpoint comes first, because what a caller does with a sweep may fail.
      if (is_due()) checkpoint_.save(result_.sweeps, documents_);
      if (parts_.on_sweep) parts_.on_sweep(done);
    }
    measure_model();
    return result_;
  }

 private:
  bool is_due() const {
    return result_.sweeps == options_.sweeps || result_.interrupted ||
           (options_.checkpoint_every > 0 && result_.sweeps % options_.checkpoint_every == 0);
  }

  void begin_topics() {
    if (!options_.anchors) return;
    if (!find_start(parts_, documents_, options_.model.topics, start_)) {
      result_.interrupted = true;
      return;
    }
    share_start(parts_.group, start_);
    result_.anchors = std::ssize(start_.anchors);
  }

  // Adds the counts of all tokens to the rows, which are empty.
  void push_all() {
    std::vector<int32_t> counts(static_cast<size_t>(options_.model.topics), 0);
    for (size_t step = 0; step < result_.slices.size(); ++step) {
      const WordSlice slice = result_.slices[slice_of(step)];
      changes_.clear();
      for (int32_t w = slice.begin; w < slice.end; ++w) {
        WordChange& change = changes_.open();
        const size_t from = change.index.size();
        for (const Token& token : documents_.tokens_of(w)) {
          const Topic topic = documents_.topics()[token.place];
          if (counts[topic]++ == 0) change.index.push_back(topic);
        }
        for (size_t i = from; i < change.index.size(); ++i) {
          const auto topic = static_cast<size_t>(change.index[i]);
          change.change.push_back(std::exchange(counts[topic], 0));
        }
        changes_.close(w);
      }
      changes_.push_to(parts_.rows);
      parts_.rows.clock();
    }
  }

  size_t slice_of(size_t step) const {
    return slice_of_step(step, parts_.group.rank(), parts_.group.size(), result_.slices.size());
  }

  // Starts to fetch the rows of a step, and the totals.
  uint64_t fetch(size_t step) {
    const WordSlice slice = result_.slices[slice_of(step)];
    keys_.clear();
    for (int32_t w = slice.begin; w < slice.end; ++w) {
      if (!documents_.tokens_of(w).empty()) keys_.push_back(w);
    }
    keys_.push_back(kTotalsKey);
    return parts_.rows.start_pull(keys_);
  }

  double beta_of(int64_t sweep) const {
    const double last = options_.model.beta;
    const double first =
        std::max(last, kFirstBeta * static_cast<double>(result_.tokens) /
                           (static_cast<double>(options_.model.topics) * options_.model.words));
    if (sweep >= options_.warm_sweeps) return last;
    return last *
           std::pow(first / last, 1 - static_cast<double>(sweep) / static_cast<double>(options_.warm_sweeps));
  }

  TopicSweep sweep() {
    const Nanoseconds start = parts_.clock.now();
    TopicSweep done;
    done.beta = beta_of(result_.sweeps);
    sampler_->begin_sweep(done.beta);
    SamplerCounts counts;
    std::vector<int32_t> sizes(static_cast<size_t>(options_.model.topics)), own(sizes.size(), 0);
    uint64_t pull = fetch(0);
    for (size_t step = 0; step < result_.slices.size(); ++step) {
      const Nanoseconds wait = parts_.clock.now();
      parts_.rows.wait(pull, rows_);
      done.wait_seconds += to_seconds(parts_.clock.now() - wait);
      // The next rows are those of the present clock. They lack this step's changes, of which `own` are this
      // rank's changes of the sizes.
      if (step + 1 < result_.slices.size()) pull = fetch(step + 1);
      std::fill(sizes.begin(), sizes.end(), 0);
      rows_.add_to(rows_.size() - 1, sizes);
      for (size_t k = 0; k < sizes.size(); ++k) sizes[k] += own[k];
      sampler_->set_sizes(sizes);
      sample_slice(counts);
      for (size_t k = 0; k < sizes.size(); ++k) own[k] = sampler_->size(static_cast<int32_t>(k)) - sizes[k];
      result_.slice_bytes = std::max(result_.slice_bytes, 16 * rows_.elements() + changes_.bytes());
      changes_.push_to(parts_.rows);
      parts_.rows.clock();
    }
    ++result_.sweeps;
    agree(counts);
    done.sweep = result_.sweeps;
    done.moved =
        counts.tokens > 0 ? static_cast<double>(counts.moved) / static_cast<double>(counts.tokens) : 0;
    done.seconds = to_seconds(parts_.clock.now() - start);
    result_.seconds += done.seconds;
    return done;
  }

  // Samples the tokens of rows_, whose last row has the totals.
  void sample_slice(SamplerCounts& counts) {
    changes_.clear();
    for (size_t i = 0; i + 1 < rows_.size(); ++i) {
      const Row row = rows_.row(i);
      const auto word = static_cast<int32_t>(row.key);
      const uint64_t key =
          key_of(key_of(options_.seed, kSampleKey, static_cast<uint64_t>(parts_.group.rank())),
                 static_cast<uint64_t>(result_.sweeps), static_cast<uint64_t>(word));
      sampler_->sample(row, documents_.tokens_of(word), start_, RandomBits(key), changes_.open(), counts);
      changes_.close(word);
    }
  }

  // Sums what the ranks counted in a sweep.
  void agree(SamplerCounts& counts) {
    const bool stop = parts_.stop != nullptr && parts_.stop->load();
    int64_t sums[] = {counts.tokens, counts.moved, stop ? 1 : 0};
    add_over_ranks(parts_.group, sums);
    counts = {sums[0], sums[1]};
    stop_ = sums[2] > 0;
  }

  // Counts what all shards hold. Collective.
  void measure_model() {
    int64_t elements = 0;
    for (int shard = parts_.group.rank(); shard < parts_.rows.shards(); shard += parts_.group.size()) {
      parts_.rows.scan(shard, [&](const RowBatch& rows) {
        for (size_t i = 0; i < rows.size(); ++i) {
          if (rows.row(i).key != kTotalsKey) elements += std::ssize(rows.row(i).index);
        }
      });
    }
    add_over_ranks(parts_.group, {&elements, 1});
    result_.model_bytes = 8 * static_cast<uint64_t>(elements);
  }

  const TopicOptions& options_;
  const TopicParts& parts_;
  const Nanoseconds begin_;
  Documents documents_;
  std::unique_ptr<TopicSampler> sampler_;
  TopicCheckpoint checkpoint_;
  std::vector<int64_t> word_tokens_;  // in all documents
  TopicStart start_;
  std::vector<int64_t> keys_;
  RowBatch rows_;
  SliceChanges changes_;
  bool stop_ = false;  // some rank was asked to stop
  TopicResult result_;
};

}  // namespace

void check_topics(const TopicOptions& options) {
  const auto require = [](bool good, const char* key, const std::string& what) {
    if (!good) throw ConfigError(key, what);
  };
  const TopicModel& model = options.model;
  require(model.topics >= 1 && model.topics <= kMostTopics, "--topics",
          fmt::format("{} topics; give a number from 1 to {}", model.topics, kMostTopics));
  for (const auto& [key, value] : {std::pair{"--alpha", model.alpha}, {"--beta", model.beta}})
    require(value >= kLeastPrior && value <= kMostPrior, key,
            fmt::format("{}: give a number from {} to {}", value, kLeastPrior, kMostPrior));
  require(options.sweeps >= 1 && options.sweeps <= kMostSweeps, "--sweeps",
          fmt::format("{} sweeps; give at least 1", options.sweeps));
  require(options.warm_sweeps >= 0, "--warm-sweeps",
          fmt::format("{} sweeps; give at least 0", options.warm_sweeps));
  require(options.cycles >= 1 && options.cycles <= 1000, "--cycles",
          fmt::format("{} pairs of proposals; give a number from 1 to 1000", options.cycles));
  require(options.slices >= 0, "--slices", fmt::format("{} slices; give at least 0", options.slices));
  require(options.checkpoint_every >= 0, "--checkpoint-every",
          fmt::format("{}: give at least 0", options.checkpoint_every));
}

void check_tokens(int64_t tokens, const std::string& corpus) {
  if (tokens == 0)
    throw DataError(corpus +
                    ": no document for training has a token; give documents with words, or hold fewer of "
                    "them out");
  if (tokens > kMostTokens)
    throw DataError(fmt::format("{}: {} tokens, but a model counts {} at most; leave documents out", corpus,
                                tokens, kMostTokens));
}

TopicResult train_topics(const TopicOptions& options, const TopicParts& parts) {
  check_topics(options);
  try {
    return TopicRun(options, parts).run();
  } catch (const std::bad_alloc&) {
    throw Error(
        ErrorCode::kMemory,
        fmt::format("{}: the samplers of {} tokens, {} words and {} topics do not fit into the memory of a "
                    "rank; use more ranks on more hosts, a smaller vocabulary, or fewer topics",
                    parts.corpus.name, parts.corpus.word.size(), options.model.words, options.model.topics));
  }
}

}  // namespace starling
