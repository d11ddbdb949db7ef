#include "starling/topics/read_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <numeric>
#include <string_view>

#include "starling/base/error.h"
#include "starling/base/unopened_file.h"
#include "starling/topics/topic_model.h"

namespace starling {
namespace {

constexpr std::string_view kNpyMagic("\x93NUMPY\x01\x00", 8);
// A vocabulary may have this many words, and more for each entry of the file. A word takes memory on every
// rank even if no document has it, so a small file must not ask for a large vocabulary.
constexpr int64_t kFreeWords = int64_t{1} << 23;
constexpr int64_t kWordsPerEntry = 4;
// A file may have this many tokens, and more for each entry. A token takes memory, and one entry announces
// many, so a small file must not ask for much.
constexpr int64_t kFreeTokens = int64_t{1} << 24;
constexpr int64_t kTokensPerEntry = int64_t{1} << 14;
constexpr double kSumTolerance = 1e-3;  // of the sum of a topic's probabilities

// The lines of a file with whole numbers.
class NumberLines {
 public:
  explicit NumberLines(const std::string& path) : path_(path), file_(path) {
    if (!file_) throw unopened_file(path);
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
        if (error != std::errc()) refuse_numbers(numbers.size());
        at = rest;
        skip();
        if (at == rest && at != end) refuse_numbers(numbers.size());  // no blank follows the number
      }
      if (at != end) refuse_numbers(numbers.size());
      return true;
    }
    if (file_.bad()) throw DataError(path_ + ": the file cannot be read");
    return false;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}, line {}: {}", path_, number_, what));
  }

 private:
  [[noreturn]] void refuse_numbers(size_t count) const {
    if (count == 1) refuse("a whole number below 2^63 is expected, and nothing else");
    refuse(fmt::format("{} whole numbers are expected, with blanks between them", count));
  }

  const std::string path_;
  std::ifstream file_;
  std::string line_;
  int64_t number_ = 0;
};

// How often a document has a word.
struct DocumentEntry {
  int64_t document;
  int32_t word;
  int32_t count;
};

// The numbers in the first three lines.
struct BagHead {
  int64_t documents = 0, words = 0, entries = 0;
};

BagHead read_head(const std::string& path, NumberLines& lines) {
  int64_t head[3] = {};
  for (int64_t& value : head) {
    if (!lines.next({&value, 1})) throw DataError(path + ": the file ends in its first three lines");
    if (value < 0) lines.refuse(fmt::format("{} is negative; a number from 0 on is expected", value));
  }
  const auto [documents, words, entries] = head;
  if (words < 1 || words > std::numeric_limits<int32_t>::max())
    throw DataError(fmt::format("{}: {} words; a vocabulary has 1 to 2^31 − 1", path, words));
  if (words > kFreeWords && (words - kFreeWords) / kWordsPerEntry > entries)
    throw DataError(
        fmt::format("{}: {} words for {} entries; a file may have {} words and {} more for each entry: "
                    "leave out the words that no document has, and renumber the others",
                    path, words, entries, kFreeWords, kWordsPerEntry));
  if (documents < 1 || documents > (int64_t{1} << 40))
    throw DataError(fmt::format("{}: {} documents; a corpus has 1 to 2^40", path, documents));
  return {documents, words, entries};
}

// The tokens of all ranks up to a line. All ranks refuse the same line.
class TokenLimit {
 public:
  void add(int64_t count, const NumberLines& lines) {
    if (count == 0) return;
    tokens_ += count;
    limit_ += kTokensPerEntry;
    if (tokens_ > limit_)
      lines.refuse(fmt::format(
          "{} tokens up to here; a file may have {} and {} more for each entry with tokens, which "
          "is {} here: divide all counts by a number, or long documents into several",
          tokens_, kFreeTokens, kTokensPerEntry, limit_));
  }

 private:
  int64_t tokens_ = 0, limit_ = kFreeTokens;
};

Corpus read_documents(const std::string& path, NumberLines& lines, const BagHead& head, int rank, int ranks) {
  const auto [documents, words, entries] = head;
  const int64_t first = documents * rank / ranks, end = documents * (rank + 1) / ranks;
  std::vector<DocumentEntry> own;
  TokenLimit limit;
  int64_t entry[3], seen = 0, tokens = 0;
  for (; lines.next(entry); ++seen) {
    if (entry[0] < 1 || entry[0] > documents)
      lines.refuse(fmt::format("document {}; there are the documents 1 to {}", entry[0], documents));
    if (entry[1] < 1 || entry[1] > words)
      lines.refuse(fmt::format("word {}; there are the words 1 to {}", entry[1], words));
    if (entry[2] < 0 || entry[2] > std::numeric_limits<int32_t>::max())
      lines.refuse(fmt::format("count {}; a count is a number from 0 to 2^31 − 1", entry[2]));
    limit.add(entry[2], lines);
    if (entry[0] - 1 < first || entry[0] - 1 >= end || entry[2] == 0) continue;
    tokens += entry[2];
    if (tokens > kMostTokens)
      lines.refuse(fmt::format("rank {} has more than {} tokens; leave documents out", rank, kMostTokens));
    own.push_back({entry[0] - 1, static_cast<int32_t>(entry[1] - 1), static_cast<int32_t>(entry[2])});
  }
  if (seen != entries)
    throw DataError(
        fmt::format("{}: the third line announces {} entries, and the file has {}; correct the line, or get "
                    "the whole file",
                    path, entries, seen));
  std::sort(own.begin(), own.end(), [](const DocumentEntry& a, const DocumentEntry& b) {
    return a.document != b.document ? a.document < b.document : a.word < b.word;
  });
  Corpus corpus;
  corpus.name = path;
  corpus.words = static_cast<int32_t>(words);
  corpus.documents = documents;
  corpus.word.reserve(static_cast<size_t>(tokens));
  for (auto at = own.begin(); at != own.end();) {
    const int64_t d = at->document;
    for (; at != own.end() && at->document == d; ++at)
      corpus.word.insert(corpus.word.end(), static_cast<size_t>(at->count), at->word);
    corpus.id.push_back(d);
    corpus.begin.push_back(static_cast<uint32_t>(corpus.word.size()));
  }
  return corpus;
}

// Reads a shape such as "(3, 4)" that ends at its parenthesis. Returns false if there is none.
bool read_shape(const char* text, long long& rows, long long& columns) {
  int end = 0;
  return std::sscanf(text, "'shape': (%lld, %lld)%n", &rows, &columns, &end) == 2 && end > 0;
}

// Refuses a φ whose columns are no distributions.
void check_columns(const std::string& path, const TopicMatrix& matrix) {
  const auto topics = static_cast<size_t>(matrix.topics);
  std::vector<double> sums(topics, 0);
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    const float value = matrix.values[i];
    if (!(value >= 0) || !std::isfinite(value))
      throw DataError(
          fmt::format("{}: row {} of column {} is {}, which is no probability; repair the program "
                      "that wrote it",
                      path, i / topics + 1, i % topics + 1, value));
    sums[i % topics] += value;
  }
  for (size_t k = 0; k < topics; ++k) {
    if (std::abs(sums[k] - 1) > kSumTolerance)
      throw DataError(
          fmt::format("{}: column {} sums to {:.6g} instead of 1; divide each column by its sum, so "
                      "that it is the distribution of a topic over the words",
                      path, k + 1, sums[k]));
  }
}

}  // namespace

Corpus read_corpus(const std::string& path, int rank, int ranks) {
  NumberLines lines(path);
  const BagHead head = read_head(path, lines);
  try {
    return read_documents(path, lines, head, rank, ranks);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kMemory,
                fmt::format("{}: {} documents with {} entries do not fit into memory; use "
                            "more ranks on more hosts, or fewer documents",
                            path, head.documents, head.entries));
  }
}

std::vector<std::string> read_vocabulary(const std::string& path, int32_t words) {
  std::ifstream file(path);
  if (!file) throw unopened_file(path);
  std::vector<std::string> out;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    out.push_back(line);
  }
  if (std::ssize(out) != words)
    throw DataError(
        fmt::format("{}: {} lines, but the corpus has {} words; give a file with one line per word", path,
                    out.size(), words));
  return out;
}

TopicMatrix read_topic_matrix(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw unopened_file(path);
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
      !read_shape(header.c_str() + shape, words, topics))
    throw DataError(path + ": a row-major matrix of float32 is expected, with a row for each word");
  if (words < 1 || words > std::numeric_limits<int32_t>::max() || topics < 1 || topics > kMostTopics)
    throw DataError(fmt::format(
        "{}: {} rows and {} columns; φ has a row for each of 1 to 2^31 − 1 words, and a column for "
        "each of 1 to {} topics",
        path, words, topics, kMostTopics));
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
  check_columns(path, matrix);
  return matrix;
}

}  // namespace starling
