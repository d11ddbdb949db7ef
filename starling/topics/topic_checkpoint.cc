#include "starling/topics/topic_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"

namespace starling {
namespace {

// Returns a hash of all documents, which does not depend on the number of ranks.
uint64_t hash_of(const TopicParts& parts) {
  const Corpus& corpus = parts.corpus;
  uint64_t sum = 0;
  for (size_t d = 0; d < corpus.count(); ++d) {
    uint64_t hash = mix64(static_cast<uint64_t>(corpus.id[d]) + kGolden);
    for (const int32_t w : corpus.document(d)) hash = mix64(hash + static_cast<uint64_t>(w) + kGolden);
    sum += hash;
  }
  std::vector<uint64_t> all(static_cast<size_t>(parts.group.size()));
  all_gather(parts.group, &sum, all.data(), sizeof(sum), DataType::kUint8);
  sum = 0;
  for (const uint64_t v : all) sum += v;
  return sum;
}

JobCheckpointOptions checkpoint_options(const TopicOptions& options, const TopicParts& parts) {
  if (options.checkpoint.empty()) return {};
  const TopicModel& model = options.model;
  JobCheckpointOptions made{
      .folder = options.checkpoint,
      .job = "topics",
      .problem = {{"documents", fmt::format("{} with {} words, hash {:x}", parts.corpus.documents,
                                            parts.corpus.words, hash_of(parts))},
                  {"topics", std::to_string(model.topics)},
                  {"alpha", fmt::format("{}", model.alpha)},
                  {"beta", fmt::format("{}", model.beta)},
                  {"sampler", options.sampler == SamplerKind::kLight ? "light" : "saber"},
                  {"warm-sweeps", std::to_string(options.warm_sweeps)},
                  {"seed", std::to_string(options.seed)}}};
  if (options.sampler == SamplerKind::kLight) made.problem["cycles"] = std::to_string(options.cycles);
  return made;
}

// The topics of a rank's documents that were found so far.
struct TakenTopics {
  std::vector<Topic> topics;       // of each token
  std::vector<bool> has_document;  // of each document
  size_t documents = 0;            // that were found
};

// Copies the topics of the rank's documents that a part has.
void take_part(const CheckpointArrays& part, const Corpus& corpus, int32_t most, TakenTopics& taken) {
  const auto ids = part.get<int64_t>("documents");
  const auto begin = part.get<uint32_t>("begin");
  const auto stored = part.get<Topic>("topics");
  const auto refuse = [] {
    throw Error(ErrorCode::kCheckpoint,
                "the arrays of a checkpoint of topics do not fit each other; remove the "
                "folder to start anew");
  };
  if (begin.size() != ids.size() + 1 || begin.back() != stored.size() ||
      !std::is_sorted(begin.begin(), begin.end()) || !std::is_sorted(ids.begin(), ids.end()))
    refuse();
  for (size_t d = 0; d < corpus.count(); ++d) {
    const auto at = std::lower_bound(ids.begin(), ids.end(), corpus.id[d]);
    if (at == ids.end() || *at != corpus.id[d]) continue;
    const auto i = static_cast<size_t>(at - ids.begin());
    // A document in two parts means that another document may be in none.
    if (taken.has_document[d] || begin[i + 1] - begin[i] != corpus.document(d).size()) refuse();
    for (uint32_t j = begin[i]; j < begin[i + 1]; ++j) {
      if (static_cast<int32_t>(stored[j]) >= most) refuse();
    }
    std::copy(stored.begin() + begin[i], stored.begin() + begin[i + 1],
              taken.topics.begin() + corpus.begin[d]);
    taken.has_document[d] = true;
    ++taken.documents;
  }
}

}  // namespace

TopicCheckpoint::TopicCheckpoint(const TopicOptions& options, const TopicParts& parts)
    : parts_(parts),
      active_(!options.checkpoint.empty()),
      topics_(options.model.topics),
      checkpoint_(parts.group, checkpoint_options(options, parts)) {}

int64_t TopicCheckpoint::resume(Documents& documents) {
  const auto found = checkpoint_.find();
  if (!found) return -1;
  agree_on_success(parts_.group, [&] {
    TakenTopics taken{.topics = std::vector<Topic>(documents.tokens(), kNoTopic),
                      .has_document = std::vector<bool>(parts_.corpus.count())};
    for (int rank = 0; rank < found->ranks; ++rank)
      take_part(checkpoint_.read(*found, rank), parts_.corpus, topics_, taken);
    if (taken.documents != parts_.corpus.count())
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format("the checkpoint has {} of {} documents of rank {}; remove the folder to start anew",
                      taken.documents, parts_.corpus.count(), parts_.group.rank()));
    documents.assign(taken.topics);
  });
  return found->step;
}

void TopicCheckpoint::save(int64_t sweep, const Documents& documents) {
  if (!active_) return;
  const Corpus& corpus = parts_.corpus;
  CheckpointArrays arrays;
  arrays.put<int64_t>("documents", corpus.id);
  arrays.put<uint32_t>("begin", corpus.begin);
  arrays.put<Topic>("topics", documents.topics());
  checkpoint_.save(sweep, arrays, {});
}

}  // namespace starling
