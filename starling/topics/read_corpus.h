// Reads the files of topic models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/topics/documents.h"

namespace starling {

// Reads the documents of one of `ranks` ranks from a file in the bag-of-words format of the UCI repository:
// the numbers of documents, words and entries, one per line, and then an entry "document word count" per
// line, with numbers from 1 on. The rank reads the whole file and keeps those of its documents that have
// tokens. Its documents are consecutive. Errors: DataError that names the file and the line; Error(kMemory).
Corpus read_corpus(const std::string& path, int rank, int ranks);

// Reads the words of a vocabulary, one per line. Errors: DataError that names the file, also if there are not
// `words` lines.
std::vector<std::string> read_vocabulary(const std::string& path, int32_t words);

// A matrix φ with φ_wk at [w · topics + k].
struct TopicMatrix {
  int32_t words = 0;
  int32_t topics = 0;
  std::vector<float> values;
};
// Reads φ from a .npy file: a row-major matrix of fp32 with a row for each word. The sum of each column is 1,
// up to 0.001. Errors: DataError that names the file and what is wrong.
TopicMatrix read_topic_matrix(const std::string& path);

}  // namespace starling
