// The compressed all-reduce of ranks that are threads, against a naive mean of naive round trips; and its bytes.
#include "starling/codec/compressed_all_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/low_rank_kernels.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/matrix_reference.h"
#include "starling/comm/bootstrap.h"
#include "starling/testing/memory_mesh.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

// Runs body on the ranks of one host, or of as many hosts as ranks.
void on_ranks(int ranks, bool one_host, const std::function<void(Group&)>& body) {
  MemoryMesh mesh;
  run_ranks(ranks, [&](const ThreadRank& at) {
    GroupSetup setup;
    setup.rank = at.rank;
    setup.size = at.size;
    setup.options.timeout = std::chrono::seconds(30);
    setup.options.shared_memory = one_host;
    setup.connect = [&mesh](const MeshSetup& m) { return mesh.connect(m); };
    setup.host_id = "host";
    setup.host_name = "node-a";
    const auto group = make_group(*at.store, setup);
    body(*group);
  });
}

// What a message between hosts has beside its content: the frame's header, 32 bytes, and the operation, 24.
constexpr uint64_t kHeads = 56;

constexpr size_t kCount = 3000;
const std::vector<TensorShape> kShapes{{50, 40, 24}, {1, 900, 76}};

Values gradient(int rank, int step) {
  Values g = test_values(kCount, static_cast<unsigned>(100 * step + rank));
  for (size_t i = 0; i < kCount; ++i)
    if ((i >= 2000 && i < 2024) || i >= 2924) g[i] = 0;
  return g;
}

struct Case {
  std::string word;
  int ranks;
  bool one_host;
};

class CompressedAllReduce : public testing::TestWithParam<Case> {};

// Three steps against the naive form: each rank's residual, round trip and sum in rank order, in this thread.
TEST_P(CompressedAllReduce, EqualsTheNaiveMeanOfRoundTripsOnEveryRank) {
  const auto [word, ranks, one_host] = GetParam();
  const CodecSpec spec = parse_codec(word);
  std::vector<Values> expected;
  std::vector<Values> residuals(static_cast<size_t>(ranks), Values(kCount, 0.0f));
  std::vector<std::unique_ptr<Codec>> codecs;
  codecs.reserve(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) codecs.push_back(make_codec(spec, kShapes));
  for (int step = 0; step < 3; ++step) {
    Values mean(kCount, 0.0f);
    for (size_t r = 0; r < codecs.size(); ++r) {
      Values x = gradient(static_cast<int>(r), step);
      for (size_t i = 0; spec.error_feedback && i < kCount; ++i) x[i] += residuals[r][i];
      const Values sent = round_trip(*codecs[r], x);
      residuals[r] = minus(x, sent);
      for (size_t i = 0; i < kCount; ++i) mean[i] = r == 0 ? sent[i] : mean[i] + sent[i];
    }
    for (float& v : mean) v /= static_cast<float>(ranks);
    expected.push_back(mean);
  }
  on_ranks(ranks, one_host, [&](Group& group) {
    const auto codec = make_codec(spec, kShapes);
    std::optional<ErrorFeedback> feedback;
    if (spec.error_feedback) feedback.emplace(kCount);
    ExchangeBuffers buffers;
    for (int step = 0; step < 3; ++step) {
      Values data = gradient(group.rank(), step);
      const size_t bytes = compressed_all_reduce(group, *codec, feedback ? &*feedback : nullptr, data,
                                                 step == 2 ? nullptr : &buffers);
      EXPECT_LE(bytes, codec->encoded_bytes(kCount));
      ASSERT_EQ(data, expected[static_cast<size_t>(step)]) << "step " << step << " rank " << group.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CompressedAllReduce,
    testing::Values(Case{"none", 2, true}, Case{"fp16", 3, true}, Case{"bf16", 2, false},
                    Case{"int8", 3, true}, Case{"int8:feedback=on", 2, true}, Case{"1bit", 3, true},
                    Case{"1bit", 3, false}, Case{"1bit:feedback=off", 2, true}, Case{"1bit", 1, true},
                    Case{"threshold:tau=0.05", 3, true}, Case{"threshold:tau=0.05", 2, false},
                    Case{"prune", 3, true}, Case{"prune:keep=0.2,feedback=off", 2, true}),
    [](const auto& info) {
      std::string name = info.param.word + (info.param.one_host ? "_window_" : "_network_");
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name + std::to_string(info.param.ranks);
    });

// PowerSGD with error feedback, five steps, against algorithms 1 and 2 of its paper in fp64.
TEST(CompressedAllReduce, PowerSgdEqualsItsPaper) {
  constexpr size_t kRows = 50, kCols = 40, kBias = 60;
  constexpr int kRanks = 3, kRank = 2;
  const auto gradient_of = [](int rank, int step) {
    return test_values(kRows * kCols + kBias, static_cast<unsigned>(10 * step + rank));
  };
  Values start(kRank * kCols);
  start_vectors(start.data(), kCols, kRank, 0);
  PaperPowerSgd paper{transposed(matrix_of(start, kRank, kCols)),
                      std::vector<Matrix>(kRanks, Matrix(kRows, kCols))};
  std::vector<Values> expected;
  for (int step = 0; step < 5; ++step) {
    std::vector<Matrix> gradients;
    Values bias(kBias, 0.0f);
    for (int r = 0; r < kRanks; ++r) {
      const Values g = gradient_of(r, step);
      gradients.push_back(matrix_of(g, kRows, kCols));
      for (size_t i = 0; i < kBias; ++i) bias[i] += g[kRows * kCols + i] / kRanks;
    }
    const Matrix mean = paper.step(gradients);
    expected.emplace_back(mean.at.begin(), mean.at.end());
    expected.back().insert(expected.back().end(), bias.begin(), bias.end());
  }
  std::vector<std::vector<Values>> results(kRanks);
  on_ranks(kRanks, true, [&](Group& group) {
    const auto codec = make_codec("lowrank:rank=2", {{kRows, kCols}, {1, kBias}});
    ErrorFeedback feedback(kRows * kCols + kBias);
    for (int step = 0; step < 5; ++step) {
      Values data = gradient_of(group.rank(), step);
      compressed_all_reduce(group, *codec, &feedback, data);
      const Values& want = expected[static_cast<size_t>(step)];
      EXPECT_LT(norm(minus(data, want)), 1e-4 * norm(want)) << step;
      results[static_cast<size_t>(group.rank())].push_back(data);
    }
    const auto& residual = paper.residual[static_cast<size_t>(group.rank())].at;
    const Values kept(feedback.residual().begin(), feedback.residual().end());
    Values want(residual.begin(), residual.end());
    want.resize(kept.size(), 0.0f);
    EXPECT_LT(norm(minus(kept, want)), 1e-4 * norm(want));
  });
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

// The factors of other ranks, gathered (lowrank as PCA): the same bits everywhere, near the naive mean.
TEST(CompressedAllReduce, PcaIsEqualOnAllRanks) {
  const std::vector<TensorShape> shapes{{40, 30, 0}, {1, 20, 4}};
  std::vector<Values> results(3);
  on_ranks(3, true, [&](Group& group) {
    const auto codec = make_codec("lowrank:form=pca,rank=3", shapes);
    Values data = test_values(1224, static_cast<unsigned>(group.rank()));
    compressed_all_reduce(group, *codec, nullptr, data);
    results[static_cast<size_t>(group.rank())] = data;
  });
  Values mean(1224, 0.0f);
  const auto codec = make_codec("lowrank:form=pca,rank=3", shapes);
  for (unsigned r = 0; r < 3; ++r) {
    const Values one = round_trip(*codec, test_values(1224, r));
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += one[i] / 3;
  }
  EXPECT_LT(norm(minus(results[0], mean)), 1e-6 * norm(mean));
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

// docs/codecs.md: what a rank's traffic grows by.
TEST(CompressedBytes, AreThoseOfTheFormula) {
  for (const char* word : {"fp16", "bf16", "int8", "1bit", "1bit:block=1024,feedback=off"}) {
    for (const bool one_host : {true, false}) {
      on_ranks(3, one_host, [&](Group& group) {
        const auto codec = make_codec(word);
        Values data = test_values(70001, static_cast<unsigned>(group.rank()));
        group.barrier();
        const TrafficCount before = group.traffic();
        const uint64_t b = compressed_all_reduce(group, *codec, nullptr, data);
        const TrafficCount after = group.traffic();
        EXPECT_EQ(b, codec->encoded_bytes(70001));
        EXPECT_EQ(after.window_written - before.window_written, one_host ? b : 0) << word;
        EXPECT_EQ(after.window_read - before.window_read, one_host ? 2 * b : 0) << word;
        EXPECT_EQ(after.socket_sent - before.socket_sent, one_host ? 0 : 2 * (b + kHeads)) << word;
        // What others sent in the barrier may be taken in after it.
        const double received = static_cast<double>(after.socket_received - before.socket_received);
        EXPECT_NEAR(received, one_host ? 0.0 : 2.0 * (b + kHeads), one_host ? 0 : 256) << word;
      });
    }
  }
}

// Messages of different lengths: their sizes travel first, then as many bytes as the longest has.
TEST(CompressedBytes, OfVariableMessagesAreThoseOfTheLongest) {
  for (const bool one_host : {true, false}) {
    std::vector<uint64_t> lengths(3);
    for (size_t r = 0; r < 3; ++r) {
      Values x = test_values(70001, static_cast<unsigned>(r));
      for (float& v : x) v *= static_cast<float>(r);
      lengths[r] = message_of(*make_codec("threshold:tau=0.05"), x).size();
    }
    const uint64_t b = 8 + *std::max_element(lengths.begin(), lengths.end());
    EXPECT_EQ(lengths[0], 8u);
    on_ranks(3, one_host, [&](Group& group) {
      const auto codec = make_codec("threshold:tau=0.05");
      Values data = test_values(70001, static_cast<unsigned>(group.rank()));
      for (float& v : data) v *= static_cast<float>(group.rank());
      group.barrier();
      const TrafficCount before = group.traffic();
      EXPECT_EQ(compressed_all_reduce(group, *codec, nullptr, data),
                lengths[static_cast<size_t>(group.rank())]);
      const TrafficCount after = group.traffic();
      EXPECT_EQ(after.window_written - before.window_written, one_host ? b : 0);
      EXPECT_EQ(after.window_read - before.window_read, one_host ? 2 * b : 0);
      EXPECT_EQ(after.socket_sent - before.socket_sent,
                one_host ? 0 : 2 * b + 4 * kHeads);  // two collectives
    });
  }
}

// The averages of none and PowerSGD are all-reduces of their messages' values: 2 (p - 1)/p b, which is b for two ranks; one
// all-reduce for none, two for the factors of PowerSGD, of one message each. In shared memory those of none are sliced (each
// rank reads its half of the other's); short factors may be read whole (flat, shm_direct_all_reduce.h).
TEST(CompressedBytes, OfAveragingCodecsAreThoseOfAnAllReduce) {
  const std::vector<TensorShape> shapes{{200, 300, 0}, {1, 500, 12}};
  for (const auto& [word, b] :
       {std::pair<const char*, uint64_t>{"none", 4 * 60512}, {"lowrank:rank=4", 4 * (4 * 500 + 500)}}) {
    for (const bool one_host : {true, false}) {
      on_ranks(2, one_host, [&](Group& group) {
        const auto codec = make_codec(word, shapes);
        Values data = test_values(60512, static_cast<unsigned>(group.rank()));
        group.barrier();
        const TrafficCount before = group.traffic();
        EXPECT_EQ(compressed_all_reduce(group, *codec, nullptr, data), b);
        const TrafficCount after = group.traffic();
        EXPECT_EQ(codec->encoded_bytes(60512), b);
        EXPECT_EQ(after.window_written - before.window_written, one_host ? b : 0) << word;
        const bool none = word == std::string_view("none");
        const uint64_t messages = none ? 1 : 2;
        const uint64_t read = after.window_read - before.window_read;
        EXPECT_GE(read, one_host ? b / 2 - 64 * (messages - 1) : 0) << word;  // slices end at cache lines
        EXPECT_LE(read, !one_host ? 0 : none ? b / 2 : b) << word;
        EXPECT_EQ(after.socket_sent - before.socket_sent, one_host ? 0 : b + messages * kHeads) << word;
      });
    }
  }
}

TEST(CompressedAllReduceErrors, AnotherCodecOnAnotherRankIsACommError) {
  try {
    on_ranks(2, true, [&](Group& group) {
      const auto codec = make_codec(group.rank() == 0 ? "int8" : "bf16");
      Values data(1000, 1.0f);
      compressed_all_reduce(group, *codec, nullptr, data);
    });
    FAIL();
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("collectives differ"));
  }
}

TEST(CompressedAllReduce, OfNothing) {
  on_ranks(2, true, [](Group& group) {
    for (const auto& [word, bytes] : {std::pair<const char*, size_t>{"none", 0},
                                      {"int8", 0},
                                      {"1bit", 0},
                                      {"threshold", 8},
                                      {"prune", 0},
                                      {"lowrank", 0}}) {
      const auto codec = make_codec(word, {{0, 0}});
      EXPECT_EQ(compressed_all_reduce(group, *codec, nullptr, {}), bytes) << word;
    }
  });
}

}  // namespace
}  // namespace starling
