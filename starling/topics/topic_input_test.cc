// What the readers, the checks and the numeric helpers of topic models refuse, and what they accept at the
// edge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/server/local_row_store.h"
#include "starling/testing/temp_dir.h"
#include "starling/topics/anchor_start.h"
#include "starling/topics/generated_corpus.h"
#include "starling/topics/read_corpus.h"
#include "starling/topics/slices.h"
#include "starling/topics/sparse_sampler.h"
#include "starling/topics/topic_match.h"
#include "starling/topics/topic_score.h"
#include "starling/topics/train_topics.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Returns what an Error says, or "" if there is none.
template <typename Work>
std::string message_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class TopicFiles : public testing::Test {
 protected:
  std::string file(const std::string& content) {
    const std::string path = folder_.file("input");
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string refusal(const std::string& bag) {
    const std::string path = file(bag);
    return message_of([&] { read_corpus(path, 0, 1); });
  }
  // shape: of the header.
  std::string phi(const std::string& shape, const std::vector<float>& values) {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }\n";
    std::string content("\x93NUMPY\x01\x00", 8);
    content += static_cast<char>(header.size());
    content += '\0';
    content += header;
    content.append(reinterpret_cast<const char*>(values.data()), 4 * values.size());
    return file(content);
  }

  const TempDir folder_;
};

TEST_F(TopicFiles, OnlyDocumentsWithTokensAreKept) {
  // The head alone would need 8 TB for the numbers of the documents.
  const Corpus corpus =
      read_corpus(file("1099511627776\n3\n4\n7 2 2\n7 1 1\n9 1 0\n1099511627776 3 1\n"), 0, 1);
  EXPECT_EQ(corpus.documents, int64_t{1} << 40);
  EXPECT_THAT(corpus.id, ElementsAre(6, (int64_t{1} << 40) - 1));
  EXPECT_THAT(corpus.begin, ElementsAre(0, 3, 4));
  EXPECT_THAT(corpus.word, ElementsAre(0, 1, 1, 2));
}

TEST_F(TopicFiles, MessagesNameTheLineAndTheRemedy) {
  EXPECT_THAT(refusal("2\n4\n1\n1-1 3\n"), HasSubstr("line 4: 3 whole numbers are expected, with blanks"));
  EXPECT_THAT(refusal("2\n4\n1\n1 1 3x\n"), HasSubstr("with blanks"));
  EXPECT_THAT(refusal("x\n4\n1\n1 1 3\n"), HasSubstr("line 1: a whole number"));
  EXPECT_THAT(refusal("2\n4\n1\n1 1 -3\n"), HasSubstr("from 0 to 2^31"));
  EXPECT_THAT(refusal("-2\n4\n1\n1 1 3\n"), HasSubstr("from 0 on"));
  EXPECT_THAT(refusal("0\n4\n0\n"), HasSubstr("1 to 2^40"));
  EXPECT_THAT(refusal("2\n4\n3\n1 1 3\n"), HasSubstr("get the whole file"));
  std::string many = "2\n4\n130200\n";
  for (int i = 0; i < 130'200; ++i) many += "1 1 16500\n";
  EXPECT_THAT(refusal(many),
              HasSubstr("line 130154: rank 0 has more than 2147483647 tokens; leave documents"));
  EXPECT_EQ(refusal("2\n4\n1\n\t1 1\t3 \r\n\n"), "");
}

// A word takes about 13 bytes, so these 26 bytes took 1.3 GB.
TEST_F(TopicFiles, ASmallFileHasNoLargeVocabulary) {
  EXPECT_THAT(refusal("2\n100000000\n2\n1 1 1\n2 1 1\n"),
              HasSubstr("100000000 words for 2 entries; a file may have 8388608 words and 4 more for each"));
  // More entries than the file has are announced, so that the vocabulary may be large.
  EXPECT_THAT(refusal("2\n100000000\n900000000\n1 1 1\n2 1 1\n"), HasSubstr("and the file has 2"));
  EXPECT_EQ(refusal("2\n8388608\n2\n1 8388608 1\n2 1 1\n"), "");
}

// A token takes 4 bytes and more, so these 17 bytes took 8 GB.
TEST_F(TopicFiles, ASmallFileHasNotManyTokens) {
  EXPECT_THAT(
      refusal("1\n1\n1\n1 1 2147483647\n"),
      HasSubstr("line 4: 2147483647 tokens up to here; a file may have 16777216 and 16384 more for each "
                "entry with tokens, which is 16793600 here: divide all counts"));
  EXPECT_EQ(refusal("1\n2\n2\n1 1 16793600\n1 2 16384\n"), "");
  EXPECT_THAT(refusal("1\n2\n2\n1 1 16793600\n1 2 16385\n"), HasSubstr("line 5: 16809985 tokens up to here"));
  // All ranks refuse the entry of one of them.
  const std::string path = file("2\n2\n2\n1 1 2000000000\n2 2 1\n");
  for (const int rank : {0, 1})
    EXPECT_THAT(message_of([&] { read_corpus(path, rank, 2); }), HasSubstr("line 4: 2000000000 tokens"));
  // An entry without tokens allows none.
  EXPECT_THAT(refusal("1\n2\n2\n1 1 0\n1 2 16793601\n"), HasSubstr("line 5: 16793601 tokens up to here;"));
}

TEST_F(TopicFiles, ColumnsOfPhiMustBeDistributions) {
  EXPECT_EQ(read_topic_matrix(phi("(2, 2)", {0.25F, 1, 0.75F, 0})).topics, 2);
  EXPECT_EQ(read_topic_matrix(phi("(2, 2)", {0.25F, 1, 0.7495F, 0})).words, 2);
  const auto refused = [&](const std::string& shape, const std::vector<float>& values) {
    const std::string path = phi(shape, values);
    return message_of([&] { read_topic_matrix(path); });
  };
  EXPECT_THAT(refused("(2, 2)", {0.25F, 2, 0.75F, 0}), HasSubstr("column 2 sums to 2 instead of 1; divide"));
  EXPECT_THAT(refused("(2, 2)", {0, 1, 0, 0}), HasSubstr("column 1 sums to 0"));
  EXPECT_THAT(refused("(2, 2)", {0.25F, 1, NAN, 0}), HasSubstr("row 2 of column 1 is nan"));
  EXPECT_THAT(refused("(2, 2, 1)", {0.25F, 1, 0.75F, 0}), HasSubstr("a row-major matrix"));
  EXPECT_THAT(refused("(2, 2", {0.25F, 1, 0.75F, 0}), HasSubstr("a row-major matrix"));
}

TEST(TopicMatch, ValuesThatAreNotFiniteAreRefused) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const std::vector<double> values = {1, 0, 0, bad};
    EXPECT_THAT(message_of([&] { best_assignment(values, 2); }), HasSubstr("true topic 2 and topic 2"));
  }
}

TEST(GeneratedCorpus, ATinyConcentrationPutsAllMassOnOnePlace) {
  GeneratedCorpus spec;
  spec.model = {.topics = 5, .words = 7, .alpha = 5e-324, .beta = 5e-324};
  spec.documents = 20;
  const std::vector<float> phi = true_topics(spec);
  for (size_t k = 0; k < 5; ++k) {
    int ones = 0, zeros = 0;
    for (size_t w = 0; w < 7; ++w) (phi[w * 5 + k] == 1 ? ones : zeros) += 1;
    EXPECT_EQ(ones, 1) << k;
    for (size_t w = 0; w < 7; ++w) EXPECT_TRUE(phi[w * 5 + k] == 0 || phi[w * 5 + k] == 1);
    EXPECT_EQ(zeros, 6) << k;
  }
  const Corpus corpus = generate_corpus(spec, phi, 0, 1);
  for (size_t d = 0; d < corpus.count(); ++d)
    EXPECT_EQ(corpus.document(d).front(), corpus.document(d).back());
}

TEST(GeneratedCorpus, TooManyDocumentsAreRefusedBeforeTheFirst) {
  GeneratedCorpus spec;
  spec.model = {.topics = 2, .words = 3};
  const std::vector<float> phi = true_topics(spec);
  spec.documents = int64_t{1} << 32;
  EXPECT_THAT(message_of([&] { generate_corpus(spec, phi, 0, 1); }), HasSubstr("generate fewer documents"));
}

TEST(CheckTopics, PriorsThatUnderflowAreRefused) {
  for (const double prior : {1e-7, 0.0, 1e7, std::nan("")}) {
    TopicOptions options;
    options.model.alpha = prior;
    EXPECT_THAT(message_of([&] { check_topics(options); }), HasSubstr("--alpha"));
    options.model = {.beta = prior};
    EXPECT_THAT(message_of([&] { check_topics(options); }), HasSubstr("--beta"));
  }
  TopicOptions options;
  options.model = {.alpha = 1e-6, .beta = 1e6};
  check_topics(options);
}

TEST(CheckTopics, ACorpusHasOneToken) {
  EXPECT_THAT(message_of([] { check_tokens(0, "docs"); }), HasSubstr("docs: no document"));
  EXPECT_THAT(message_of([] { check_tokens(kMostTokens + 1, "docs"); }), HasSubstr("2147483648 tokens"));
  check_tokens(1, "docs");
  check_tokens(kMostTokens, "docs");
}

TEST(CheckTopics, RowsThatAScorerReadsKeepWithinAnEighthOfTheLimit) {
  EXPECT_EQ(words_at_once(0, 100), 20'000);
  EXPECT_EQ(words_at_once(1'000'000, 100), 39);
  EXPECT_EQ(words_at_once(1'000'000, 65'535), 1);
  EXPECT_EQ(words_at_once(uint64_t{1} << 50, 100), 20'000);
}

TEST(Slices, WordsWithoutTokensAreOneSlice) {
  EXPECT_EQ(cut_words(std::vector<int64_t>(1000, 0), 5, 1, 0, 0).size(), 1);
}

// Documents of two topics with 10 words each. A document has `length` tokens of a topic.
Corpus two_topics(int documents, int length) {
  Corpus corpus;
  corpus.name = "a test";
  corpus.words = 20;
  corpus.documents = documents;
  RandomBits random(3);
  for (int d = 0; d < documents; ++d) {
    std::vector<int32_t> words;
    for (int i = 0; i < length; ++i) words.push_back(d % 2 * 10 + static_cast<int32_t>(random.below(10)));
    std::sort(words.begin(), words.end());
    corpus.id.push_back(d);
    corpus.word.insert(corpus.word.end(), words.begin(), words.end());
    corpus.begin.push_back(static_cast<uint32_t>(corpus.word.size()));
  }
  return corpus;
}

// With documents of 20,000 tokens, an anchor's tokens are a part of each document.
TEST(AnchorStart, LongDocumentsHaveTheirAnchors) {
  const Corpus corpus = two_topics(100, 20'000);
  const Documents documents(corpus, 2);
  const TopicStart start = anchor_start(corpus, documents, 2, [] { return true; });
  ASSERT_EQ(start.anchors.size(), 2);
  EXPECT_NE(start.anchors[0] / 10, start.anchors[1] / 10);
  RandomBits random(1);
  for (int32_t w = 0; w < 20; ++w) {
    const int32_t topic = start.draw(w, random);
    ASSERT_GE(topic, 0) << w;
    EXPECT_EQ(start.anchors[static_cast<size_t>(topic)] / 10, w / 10) << w;
  }
}

TEST(AnchorStart, AStopEndsTheRunWithoutASweep) {
  const Corpus corpus = two_topics(100, 20);
  TopicOptions options;
  options.model = {.topics = 2, .words = 20};
  const auto group = make_single_group();
  LocalRowStore rows({.width = 2, .workers = 1, .totals = true});
  const SystemClock clock;
  const std::atomic<bool> stop = true;
  TopicParts parts{.group = *group, .corpus = corpus, .rows = rows, .clock = clock};
  parts.stop = &stop;
  const TopicResult result = train_topics(options, parts);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.sweeps, 0);
}

// The last tokens of a word have no document whose topics are loaded ahead, also if no token has a topic.
TEST(SparseSampler, TheFirstSweepHasNoTopics) {
  const Corpus corpus = two_topics(20, 20);
  Documents documents(corpus, 2);
  SparseSampler sampler({.topics = 2, .words = 20}, documents);
  sampler.set_sizes(std::vector<int32_t>{0, 0});
  RowBatch batch;
  batch.begin_row(3);
  WordChange change;
  SamplerCounts counts;
  sampler.sample(batch.row(0), documents.tokens_of(3), {}, RandomBits(1), change, counts);
  EXPECT_GT(counts.tokens, 8);
  EXPECT_EQ(counts.moved, counts.tokens);
}

TEST(TrainTopics, ACheckpointIsThereBeforeASweepIsReported) {
  const TempDir folder;
  const Corpus corpus = two_topics(10, 20);
  TopicOptions options;
  options.model = {.topics = 2, .words = 20};
  options.sweeps = 1;
  options.checkpoint = folder.file("ck");
  const auto group = make_single_group();
  const SystemClock clock;
  const auto run = [&](bool fails) {
    LocalRowStore rows({.width = 2, .workers = 1, .totals = true});
    TopicParts parts{.group = *group, .corpus = corpus, .rows = rows, .clock = clock};
    parts.on_sweep = [&](const TopicSweep&) {
      if (fails) throw DataError("no score");
    };
    return train_topics(options, parts).resumed_from;
  };
  EXPECT_THROW(run(true), DataError);
  EXPECT_EQ(run(false), 1);
}

TEST(TrainTopics, TheProposalsOfLightAreNoSettingOfSaber) {
  const TempDir folder;
  const Corpus corpus = two_topics(10, 20);
  TopicOptions options;
  options.model = {.topics = 2, .words = 20};
  options.sampler = SamplerKind::kSaber;
  options.sweeps = 1;
  options.checkpoint = folder.file("ck");
  const auto group = make_single_group();
  const SystemClock clock;
  const auto run = [&] {
    LocalRowStore rows({.width = 2, .workers = 1, .totals = true});
    return train_topics(options, {.group = *group, .corpus = corpus, .rows = rows, .clock = clock})
        .resumed_from;
  };
  run();
  options.cycles = 3;
  EXPECT_EQ(run(), 1);
}

TEST(TopicScore, MessagesCountFromOneAndTheRowsAreMeasured) {
  const Corpus corpus = two_topics(4, 200);
  const auto group = make_single_group();
  std::vector<float> phi(40, 0.05F);
  const auto score = [&] {
    return score_topics(*group, corpus, topics_of_matrix(phi, 2), {.topics = 2, .words_at_once = 10});
  };
  EXPECT_EQ(score().bytes, 16 * 10 * 2);
  for (float& p : phi) p = 0;
  const std::string said = message_of([&] { score(); });
  EXPECT_THAT(said, HasSubstr("of held-out document 1 "));
  EXPECT_THAT(said, testing::Not(HasSubstr("word 0 ")));
}

}  // namespace
}  // namespace starling
