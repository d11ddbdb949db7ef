// Documents are the documents of one rank, with the topic of each token. The tokens of a document are one
// after another, with ascending words. The tokens of a word are a list of places, because the samplers go
// through the words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/topics/topic_model.h"

namespace starling {

// A corpus, or the part of it that a rank holds.
struct Corpus {
  std::string name;                // for messages
  int32_t words = 0;               // V: the size of the vocabulary
  int64_t documents = 0;           // in the whole corpus
  std::vector<int64_t> id;         // the number of each document of the rank in the whole corpus, ascending
  std::vector<uint32_t> begin{0};  // of each document of the rank in `word`; one more at the end
  std::vector<int32_t> word;       // of each token, ascending within a document

  // Returns the number of documents of the rank.
  size_t count() const { return begin.size() - 1; }
  // Returns the words of a document of the rank.
  std::span<const int32_t> document(size_t d) const {
    return {word.data() + begin[d], begin[d + 1] - begin[d]};
  }
};

// A token in the list of its word.
struct Token {
  uint32_t document;  // of the rank
  uint32_t place;     // in Documents::topic
};

// Counts by topic of a long document are a table. Those of a short document are counted when they are needed.
inline constexpr uint32_t kShortDocument = 1024;

// The documents of a rank in the form that the samplers use. Not thread-safe.
class Documents {
 public:
  // Takes the tokens of `corpus`. All tokens have kNoTopic.
  Documents(const Corpus& corpus, int32_t topics);

  // Returns the number of documents.
  size_t count() const { return begin_.size() - 1; }
  // Returns the number of tokens.
  size_t tokens() const { return topic_.size(); }
  // Returns the place of a document's first token. d may be count().
  uint32_t begin(size_t d) const { return begin_[d]; }
  // Returns the topics of a document's tokens.
  std::span<const Topic> topics_of(size_t d) const {
    return {topic_.data() + begin_[d], begin_[d + 1] - begin_[d]};
  }
  // Returns the topic of each token.
  std::span<const Topic> topics() const { return topic_; }
  // Returns the tokens of a word.
  std::span<const Token> tokens_of(int32_t word) const {
    return {list_.data() + list_begin_[static_cast<size_t>(word)],
            list_begin_[static_cast<size_t>(word) + 1] - list_begin_[static_cast<size_t>(word)]};
  }
  // Changes the topic of a token, and the table of a long document.
  void set(const Token& token, Topic topic) {
    const int64_t table = table_[token.document];
    if (table >= 0) change_table(table, topic_[token.place], topic);
    topic_[token.place] = topic;
  }
  // Returns the numbers of tokens of a document with topic a and with topic b.
  std::pair<uint32_t, uint32_t> count_two(uint32_t d, Topic a, Topic b) const {
    const int64_t table = table_[d];
    if (table >= 0) [[unlikely]]
      return {tables_[static_cast<size_t>(table) + a], tables_[static_cast<size_t>(table) + b]};
    return count_two_in(topic_.data() + begin_[d], begin_[d + 1] - begin_[d], a, b);
  }
  // Loads a document's topics into the cache.
  void prefetch(uint32_t d) const {
    const char* at = reinterpret_cast<const char*>(topic_.data() + begin_[d]);
    const char* end = reinterpret_cast<const char*>(topic_.data() + begin_[d + 1]);
    if (end - at > kMostPrefetched) end = at + kMostPrefetched;
    for (; at < end; at += 64) __builtin_prefetch(at);
  }
  // Replaces all topics, for example by those of a checkpoint.
  void assign(std::span<const Topic> topics);
  // Returns the bytes of the memory.
  size_t bytes() const;

 private:
  static constexpr int64_t kMostPrefetched = 1024;
  static std::pair<uint32_t, uint32_t> count_two_in(const Topic* topics, uint32_t count, Topic a, Topic b);
  void change_table(int64_t table, Topic from, Topic to) {
    if (from != kNoTopic) --tables_[static_cast<size_t>(table) + from];
    if (to != kNoTopic) ++tables_[static_cast<size_t>(table) + to];
  }

  std::vector<uint32_t> begin_;
  std::vector<Topic> topic_;
  std::vector<uint32_t> list_begin_;  // by word, in list_
  std::vector<Token> list_;
  std::vector<int64_t> table_;    // by document: where its table begins in tables_, or −1
  std::vector<uint32_t> tables_;  // of the long documents, with a count for each topic
};

}  // namespace starling
