// TopicSampler samples the topics of a word's tokens. WordSampler (word_sampler.h) is that of LightLDA, and
// SparseSampler (sparse_sampler.h) that of SaberLDA.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/server/row_batch.h"
#include "starling/topics/anchor_start.h"
#include "starling/topics/documents.h"
#include "starling/topics/random_bits.h"

namespace starling {

// The changes of rows: element index[i] of a row changes by change[i].
struct WordChange {
  std::vector<int32_t> index;
  std::vector<int32_t> change;
  // Removes all elements and keeps the memory.
  void clear() { index.clear(), change.clear(); }
};

// What a sampler did.
struct SamplerCounts {
  int64_t tokens = 0;  // that were sampled
  int64_t moved = 0;   // whose topic is another one than before
};

// Not thread-safe.
class TopicSampler {
 public:
  virtual ~TopicSampler() = default;

  // Begins a sweep over all words, with β for this sweep.
  virtual void begin_sweep(double beta) = 0;
  // Takes the sizes n_k of all topics. Call it before the first word of a slice.
  virtual void set_sizes(std::span<const int32_t> sizes) = 0;
  // Returns the size of a topic, with the changes since set_sizes().
  virtual int32_t size(int32_t topic) const = 0;
  // Samples the tokens of the word row.key. row: its counts. A token without a topic gets one from `start`.
  // Appends the changes of the row to `change`, with ascending topics.
  virtual void sample(const Row& row, std::span<const Token> tokens, const TopicStart& start,
                      RandomBits random, WordChange& change, SamplerCounts& counts) = 0;
};

}  // namespace starling
