// Latent Dirichlet allocation over ranks by LightLDA (Yuan et al., WWW 2015, arXiv 1412.1576) or SaberLDA (Li
// et al., ASPLOS 2017, arXiv 1610.02496). docs/explanation/topics.md describes it.
//
// The documents are divided among the ranks and stay there. The counts n_wk and n_k are a row table
// (server/row_store.h) with a row for each word. In a sweep, each rank goes through the slices of the
// vocabulary (slices.h): it fetches the rows of the next slice, samples the tokens of the present one, and
// pushes the changes of its rows. At staleness 0, a run depends on no timing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/server/row_store.h"
#include "starling/topics/documents.h"
#include "starling/topics/slices.h"
#include "starling/topics/topic_model.h"

namespace starling {

// How topics are sampled.
enum class SamplerKind { kLight, kSaber };

struct TopicOptions {
  TopicModel model;  // `words` is that of the corpus
  SamplerKind sampler = SamplerKind::kLight;
  int64_t sweeps = 100;
  int64_t warm_sweeps = 20;   // in which β falls to its value
  bool anchors = true;        // whether topics begin with anchors (anchor_start.h), and not at random
  int cycles = 2;             // pairs of proposals per token, of kLight
  int64_t slices = 0;         // at least so many; 0: automatic
  uint64_t memory_limit = 0;  // bytes of the model that a rank may hold; 0: no limit
  uint64_t seed = 0;
  std::string checkpoint;        // a folder; empty: none
  int64_t checkpoint_every = 0;  // sweeps; 0: at the end only
};

// What is known after a sweep. Equal on all ranks, apart from the times.
struct TopicSweep {
  int64_t sweep = 0;        // sweeps that are done
  double moved = 0;         // share of the tokens whose topic changed
  double beta = 0;          // of this sweep
  double seconds = 0;       // of this sweep on this rank
  double wait_seconds = 0;  // of it, waiting for rows
};

// The environment of a rank's work. All references must outlive the call.
struct TopicParts {
  Group& group;
  const Corpus& corpus;  // of this rank
  // Of `topics` columns and with totals, empty, at staleness 0. With one rank, any staleness has equal
  // results.
  RowStore& rows;
  const Clock& clock;
  const std::atomic<bool>* stop = nullptr;  // set on some rank: the ranks write a checkpoint and end
  // Receives what is known after each sweep. Called on all ranks, which may read rows meanwhile. May be
  // empty.
  std::function<void(const TopicSweep&)> on_sweep = {};
  // Receives the sweep of the checkpoint from which the run goes on, on rank 0. May be empty.
  std::function<void(int64_t)> on_resumed = {};
  // Receives the topic of each token of this rank at the end of each sweep. May be empty.
  std::function<void(std::span<const Topic>)> on_topics = {};
};

// What a run reports. Equal on all ranks, unless a comment says otherwise.
struct TopicResult {
  int64_t sweeps = 0;         // that the model has
  int64_t resumed_from = -1;  // the sweep of the checkpoint; −1: none
  bool interrupted = false;   // also in the search for anchors, after which there is no checkpoint
  int64_t tokens = 0;         // of all ranks
  int64_t anchors = 0;        // topics that began with an anchor
  double seconds = 0;         // of all sweeps of this rank
  double start_seconds = 0;   // of the start on this rank
  uint64_t model_bytes = 0;   // 8 for each count of a word that is not zero, at the end
  uint64_t slice_bytes = 0;   // the most that this rank held of slices and of their changes
  std::vector<WordSlice> slices;
};

// Throws ConfigError if an option is out of range.
void check_topics(const TopicOptions& options);

// Throws DataError if a model cannot have so many tokens over all ranks: none, or more than kMostTokens.
// corpus: its name.
void check_tokens(int64_t tokens, const std::string& corpus);

// Returns the most bytes that the rows of a slice may take, and those that a shard of the table may hold, of
// a memory limit. 0: no limit.
constexpr uint64_t slice_limit(uint64_t memory_limit) {
  return memory_limit / 16;
}
constexpr uint64_t shard_limit(uint64_t memory_limit) {
  return memory_limit / 4 * 3;
}
// Returns the number of words whose rows a scorer or an export reads at a time, at most 20,000. A row takes
// up to 16 bytes per topic, of the count and of φ, and vectors may have twice the memory that they need. All
// take an eighth of the limit, or a single row.
constexpr size_t words_at_once(uint64_t memory_limit, int32_t topics) {
  constexpr uint64_t kMost = 20'000;
  if (memory_limit == 0) return kMost;
  const uint64_t words = memory_limit / 8 / (32 * static_cast<uint64_t>(topics));
  return static_cast<size_t>(words < 1 ? 1 : words < kMost ? words : kMost);
}

// Samples. Collective. Errors: ConfigError, from check_topics(), for a row that is larger than the limit, and
// for a checkpoint of another run; DataError from check_tokens(); Error(kCheckpoint); Error(kMemory);
// CommError; those of the row store.
TopicResult train_topics(const TopicOptions& options, const TopicParts& parts);

}  // namespace starling
