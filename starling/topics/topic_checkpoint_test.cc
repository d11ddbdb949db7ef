// Resumes topics from checkpoints whose parts are whole but do not fit each other.
#include "starling/topics/topic_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/server/local_row_store.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::HasSubstr;

constexpr int32_t kTopics = 3;
const std::vector<std::vector<int32_t>> kDocuments = {{0, 0, 1}, {2, 3, 4}, {1, 4}};

TopicOptions options_in(const std::string& folder) {
  TopicOptions options;
  options.model = {.topics = kTopics, .words = 5, .alpha = 0.1, .beta = 0.01};
  options.checkpoint = folder;
  return options;
}

// Returns the documents from `first` to before `end`.
Corpus corpus_of(size_t first, size_t end) {
  Corpus corpus;
  corpus.name = "a test";
  corpus.words = 5;
  corpus.documents = std::ssize(kDocuments);
  for (size_t d = first; d < end; ++d) {
    corpus.id.push_back(static_cast<int64_t>(d));
    corpus.word.insert(corpus.word.end(), kDocuments[d].begin(), kDocuments[d].end());
    corpus.begin.push_back(static_cast<uint32_t>(corpus.word.size()));
  }
  return corpus;
}

// Returns the topics that the tests store: 0, 1, 2, 0, … over all tokens of the corpus of a rank.
std::vector<Topic> stored_topics(const Corpus& corpus) {
  std::vector<Topic> topics;
  for (size_t i = 0; i < corpus.word.size(); ++i) topics.push_back(static_cast<Topic>(i % kTopics));
  return topics;
}

// Saves a checkpoint of sweep 2 on two ranks. Rank 0 has document 0, and rank 1 has the documents 1 and 2.
void save_on_two_ranks(const std::string& folder) {
  run_ranks(2, [&](const ThreadRank& self) {
    const auto group = join_group(*self.store, self.rank, 2);
    LocalRowStore rows({.width = kTopics, .workers = 1, .totals = true});
    const SystemClock clock;
    const Corpus corpus = self.rank == 0 ? corpus_of(0, 1) : corpus_of(1, 3);
    Documents documents(corpus, kTopics);
    documents.assign(stored_topics(corpus));
    const TopicOptions options = options_in(folder);
    const TopicParts parts{.group = *group, .corpus = corpus, .rows = rows, .clock = clock};
    TopicCheckpoint checkpoint(options, parts);
    EXPECT_EQ(checkpoint.resume(documents), -1);
    checkpoint.save(2, documents);
  });
}

// Resumes on one rank. Returns the topics of all tokens.
std::vector<Topic> resume_on_one_rank(const std::string& folder) {
  const auto group = make_single_group();
  LocalRowStore rows({.width = kTopics, .workers = 1, .totals = true});
  const SystemClock clock;
  const Corpus corpus = corpus_of(0, kDocuments.size());
  Documents documents(corpus, kTopics);
  const TopicOptions options = options_in(folder);
  const TopicParts parts{.group = *group, .corpus = corpus, .rows = rows, .clock = clock};
  TopicCheckpoint checkpoint(options, parts);
  EXPECT_EQ(checkpoint.resume(documents), 2);
  return {documents.topics().begin(), documents.topics().end()};
}

// Replaces the part of rank 1 by one that holds the documents `ids`, whole and with the right hash.
void replace_part(const std::string& folder, const std::vector<int64_t>& ids) {
  std::vector<uint32_t> begin{0};
  for (const int64_t id : ids)
    begin.push_back(begin.back() + static_cast<uint32_t>(kDocuments[static_cast<size_t>(id)].size()));
  const std::vector<Topic> topics(begin.back(), 1);
  CheckpointArrays arrays;
  arrays.put<int64_t>("documents", ids);
  arrays.put<uint32_t>("begin", begin);
  arrays.put<Topic>("topics", topics);
  std::ofstream(folder + "/part-2-1-of-2", std::ios::binary) << arrays.write(2, 1, 2);
}

std::string refusal(const std::string& folder) {
  try {
    resume_on_one_rank(folder);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
    return error.what();
  }
  return "none";
}

TEST(TopicCheckpoint, OneRankReadsThePartsOfTwo) {
  const TempDir dir;
  save_on_two_ranks(dir.path());
  EXPECT_THAT(resume_on_one_rank(dir.path()), testing::ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
}

// A document without topics would be counted with topic 65535, far behind the counts of its word.
TEST(TopicCheckpoint, ADocumentInTwoPartsIsRefused) {
  const TempDir dir;
  save_on_two_ranks(dir.path());
  // The three documents of both parts are as many as the corpus has, but document 1 is in none.
  replace_part(dir.path(), {0, 2});
  EXPECT_THAT(refusal(dir.path()), HasSubstr("do not fit each other; remove the folder"));
}

TEST(TopicCheckpoint, ADocumentInNoPartIsRefused) {
  const TempDir dir;
  save_on_two_ranks(dir.path());
  replace_part(dir.path(), {2});
  EXPECT_THAT(refusal(dir.path()), HasSubstr("has 2 of 3 documents of rank 0"));
}

}  // namespace
}  // namespace starling
