// Reads any bytes as a bag of words, or as a φ in a .npy file. The readers must refuse them with a DataError,
// or return the documents of a rank, or distributions of words.
#include <cmath>
#include <string>

#include "starling/base/error.h"
#include "starling/topics/read_corpus.h"
#include "tests/fuzz/file_in_memory.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

void read_bag(const std::string& path, int rank, int ranks) {
  const Corpus corpus = read_corpus(path, rank, ranks);
  require_property(corpus.words >= 1 && corpus.id.size() == corpus.count());
  require_property(corpus.begin.back() == corpus.word.size());
  for (size_t d = 0; d < corpus.count(); ++d) {
    require_property(!corpus.document(d).empty());
    require_property(corpus.id[d] >= corpus.documents * rank / ranks);
    require_property(corpus.id[d] < corpus.documents * (rank + 1) / ranks);
    require_property(d == 0 || corpus.id[d - 1] < corpus.id[d]);
    int32_t previous = 0;
    for (const int32_t w : corpus.document(d)) {
      require_property(w >= previous && w < corpus.words);
      previous = w;
    }
  }
}

void read_phi(const std::string& path, size_t bytes) {
  const TopicMatrix phi = read_topic_matrix(path);
  const auto topics = static_cast<size_t>(phi.topics);
  require_property(phi.words >= 1 && topics >= 1);
  require_property(phi.values.size() == static_cast<size_t>(phi.words) * topics);
  require_property(4 * phi.values.size() <= bytes);
  for (size_t k = 0; k < topics; ++k) {
    double sum = 0;
    for (size_t i = k; i < phi.values.size(); i += topics) sum += phi.values[i];
    require_property(std::abs(sum - 1) < 2e-3);
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static FileInMemory file;
  FuzzInput input(data, size);
  const int kind = input.byte() % 2, ranks = 1 + input.byte() % 3, rank = input.byte() % ranks;
  const std::string content = input.text(size);
  try {
    const std::string& path = file.with(content);
    kind == 0 ? read_bag(path, rank, ranks) : read_phi(path, content.size());
  } catch (const DataError&) {
  }
  return 0;
}
