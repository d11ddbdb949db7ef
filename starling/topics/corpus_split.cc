#include "starling/topics/corpus_split.h"

#include <algorithm>

#include "starling/topics/random_bits.h"

namespace starling {
namespace {

// The keys of the choices, which are equal in all runs.
constexpr uint64_t kHeldOutKey = 0x7E57;
constexpr uint64_t kHalfKey = 0x4A1F;

void append(Corpus& to, const Corpus& from, size_t d) {
  const auto words = from.document(d);
  to.word.insert(to.word.end(), words.begin(), words.end());
  to.begin.push_back(static_cast<uint32_t>(to.word.size()));
  to.id.push_back(from.id[d]);
}

}  // namespace

bool is_held_out(int64_t document, double share) {
  return uniform_of(key_of(kHeldOutKey, 0, static_cast<uint64_t>(document))) < share;
}

std::pair<Corpus, Corpus> split_corpus(const Corpus& corpus, double share) {
  Corpus training, testing;
  for (Corpus* part : {&training, &testing}) {
    part->name = corpus.name;
    part->words = corpus.words;
    part->documents = corpus.documents;
  }
  for (size_t d = 0; d < corpus.count(); ++d)
    append(is_held_out(corpus.id[d], share) ? testing : training, corpus, d);
  return {std::move(training), std::move(testing)};
}

std::pair<std::vector<int32_t>, std::vector<int32_t>> halves_of(const Corpus& corpus, size_t document) {
  const auto words = corpus.document(document);
  RandomBits random(key_of(kHalfKey, words.size(), static_cast<uint64_t>(corpus.id[document])));
  std::vector<int32_t> first, second;
  size_t wanted = (words.size() + 1) / 2;
  for (size_t i = 0; i < words.size(); ++i) {
    // Selection sampling: each subset of that size is equally likely.
    const size_t left = words.size() - i;
    const bool take = random.below(static_cast<uint32_t>(left)) < wanted;
    (take ? first : second).push_back(words[i]);
    if (take) --wanted;
  }
  return {std::move(first), std::move(second)};
}

}  // namespace starling
