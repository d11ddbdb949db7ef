#include "starling/topics/read_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <string_view>

#include "starling/base/error.h"
#include "starling/topics/topic_model.h"

namespace starling {
namespace {

constexpr std::string_view kNpyMagic("\x93NUMPY\x01\x00", 8);

// The lines of a file with whole numbers.
class NumberLines {
 public:
  explicit NumberLines(const std::string& path) : path_(path), file_(path) {
    if (!file_) throw DataError(path + ": the file cannot be opened");
  }

  // Reads the numbers of the next line that is not empty. Returns false at the end of the file.
  bool next(std::span<int64_t> numbers) {
    while (std::getline(file_, line_)) {
      ++number_;
      const char* at = line_.data();
      const char* end = at + line_.size();
      const auto skip = [&] {
        while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
      };
      skip();
      if (at == end) continue;
      for (int64_t& value : numbers) {
        const auto [rest, error] = std::from_chars(at, end, value);
        if (error != std::errc()) refuse(fmt::format("{} whole numbers are expected", numbers.size()));
        at = rest;
        skip();
      }
      if (at != end) refuse(fmt::format("{} whole numbers are expected", numbers.size()));
      return true;
    }
    if (file_.bad()) throw DataError(path_ + ": the file cannot be read");
    return false;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}, line {}: {}", path_, number_, what));
  }

 private:
  const std::string path_;
  std::ifstream file_;
  std::string line_;
  int64_t number_ = 0;
};

struct DocumentEntry {
  int64_t document;
  int32_t word;
  int32_t count;
};

}  // namespace

Corpus read_corpus(const std::string& path, int rank, int ranks) {
  NumberLines lines(path);
  int64_t head[3] = {};
  for (int64_t& value : head) {
    if (!lines.next({&value, 1})) throw DataError(path + ": the file ends in its first three lines");
    if (value < 0) lines.refuse(fmt::format("{} is negative", value));
  }
  const auto [documents, words, entries] = head;
  if (words < 1 || words > std::numeric_limits<int32_t>::max())
    throw DataError(fmt::format("{}: {} words; a vocabulary has 1 to 2^31 − 1", path, words));
  if (documents < 1 || documents > (int64_t{1} << 40))
    throw DataError(fmt::format("{}: {} documents", path, documents));
  const int64_t first = documents * rank / ranks, end = documents * (rank + 1) / ranks;
  std::vector<DocumentEntry> own;
  int64_t entry[3], seen = 0, tokens = 0;
  for (; lines.next(entry); ++seen) {
    if (entry[0] < 1 || entry[0] > documents)
      lines.refuse(fmt::format("document {}; there are the documents 1 to {}", entry[0], documents));
    if (entry[1] < 1 || entry[1] > words)
      lines.refuse(fmt::format("word {}; there are the words 1 to {}", entry[1], words));
    if (entry[2] < 0 || entry[2] > std::numeric_limits<int32_t>::max())
      lines.refuse(fmt::format("count {}", entry[2]));
    if (entry[0] - 1 < first || entry[0] - 1 >= end) continue;
    tokens += entry[2];
    if (tokens >= std::numeric_limits<uint32_t>::max())
      lines.refuse(fmt::format("rank {} has 2^32 tokens or more; use more ranks", rank));
    own.push_back({entry[0] - 1, static_cast<int32_t>(entry[1] - 1), static_cast<int32_t>(entry[2])});
  }
  if (seen != entries)
    throw DataError(
        fmt::format("{}: the third line announces {} entries, and the file has {}", path, entries, seen));
  std::sort(own.begin(), own.end(), [](const DocumentEntry& a, const DocumentEntry& b) {
    return a.document != b.document ? a.document < b.document : a.word < b.word;
  });
  Corpus corpus;
  corpus.name = path;
  corpus.words = static_cast<int32_t>(words);
  corpus.documents = documents;
  corpus.word.reserve(static_cast<size_t>(tokens));
  auto at = own.begin();
  for (int64_t d = first; d < end; ++d) {
    for (; at != own.end() && at->document == d; ++at)
      corpus.word.insert(corpus.word.end(), static_cast<size_t>(at->count), at->word);
    corpus.id.push_back(d);
    corpus.begin.push_back(static_cast<uint32_t>(corpus.word.size()));
  }
  return corpus;
}

std::vector<std::string> read_vocabulary(const std::string& path, int32_t words) {
  std::ifstream file(path);
  if (!file) throw DataError(path + ": the file cannot be opened");
  std::vector<std::string> out;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    out.push_back(line);
  }
  if (std::ssize(out) != words)
    throw DataError(fmt::format("{}: {} lines, but the corpus has {} words", path, out.size(), words));
  return out;
}

TopicMatrix read_topic_matrix(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError(path + ": the file cannot be opened");
  char head[10];
  if (!file.read(head, sizeof(head)) || std::string_view(head, 8) != kNpyMagic)
    throw DataError(path + ": this is no .npy file of version 1.0");
  std::string header(
      static_cast<unsigned char>(head[8]) + 256 * static_cast<size_t>(static_cast<unsigned char>(head[9])),
      ' ');
  if (!file.read(header.data(), static_cast<std::streamsize>(header.size())))
    throw DataError(path + ": the file ends in its header");
  long long words = 0, topics = 0;
  const size_t shape = header.find("'shape': (");
  if (header.find("'<f4'") == std::string::npos ||
      header.find("'fortran_order': False") == std::string::npos || shape == std::string::npos ||
      std::sscanf(header.c_str() + shape, "'shape': (%lld, %lld)", &words, &topics) != 2)
    throw DataError(path + ": a row-major matrix of float32 is expected, with a row for each word");
  if (words < 1 || words > std::numeric_limits<int32_t>::max() || topics < 1 || topics > kMostTopics)
    throw DataError(fmt::format("{}: {} × {} is no matrix of words and topics", path, words, topics));
  TopicMatrix matrix{static_cast<int32_t>(words), static_cast<int32_t>(topics), {}};
  const auto from = file.tellg();
  file.seekg(0, std::ios::end);
  const auto bytes = static_cast<int64_t>(file.tellg() - from);
  if (bytes != 4 * words * topics)
    throw DataError(
        fmt::format("{}: {} bytes behind the header instead of {}", path, bytes, 4 * words * topics));
  file.seekg(from);
  matrix.values.resize(static_cast<size_t>(words * topics));
  if (!file.read(reinterpret_cast<char*>(matrix.values.data()), bytes))
    throw DataError(path + ": the file cannot be read");
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    if (!(matrix.values[i] >= 0) || !std::isfinite(matrix.values[i]))
      throw DataError(
          fmt::format("{}: element {} is {}, which is no probability", path, i, matrix.values[i]));
  }
  return matrix;
}

}  // namespace starling
