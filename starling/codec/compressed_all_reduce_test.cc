// Compares the compressed all-reduce of ranks that are threads with a naive mean of naive round trips, and
// its bytes with the formula.
#include "starling/codec/compressed_all_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/codec_test_bytes.h"
#include "starling/codec/low_rank_kernels.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/matrix_reference.h"
#include "starling/codec/message_bytes.h"
#include "starling/spec/extensions.h"
#include "starling/testing/memory_ranks.h"
#include "starling/testing/thorough.h"

namespace starling {
namespace {

constexpr size_t kCount = 3000;
const std::vector<TensorShape> kShapes{{50, 40, 24}, {1, 900, 76}};

Values gradient(int rank, int step) {
  Values g = test_values(kCount, static_cast<unsigned>(100 * step + rank));
  for (size_t i = 0; i < kCount; ++i)
    if ((i >= 2000 && i < 2024) || i >= 2924) g[i] = 0;
  return g;
}

// Returns the shapes of a part, value by value: each value belongs to a tensor or to the padding behind it.
std::vector<TensorShape> part_shapes_reference(size_t begin, size_t end) {
  std::vector<TensorShape> result;
  size_t at = 0, last = kShapes.size();
  for (size_t t = 0; t < kShapes.size(); ++t) {
    for (size_t i = 0; i < kShapes[t].size() + kShapes[t].padding; ++i, ++at) {
      if (at < begin || at >= end) continue;
      if (t != last) result.push_back({1, 0, 0});
      last = t;
      ++(i < kShapes[t].size() ? result.back().cols : result.back().padding);
    }
  }
  return result;
}

// The naive form of the exchange in one thread: whole messages of all ranks are added, or parts are sent to
// their owners and back.
class NaiveExchange {
 public:
  NaiveExchange(const CodecSpec& spec, size_t ranks) : spec_(spec), residual_(ranks, Values(kCount, 0.0f)) {
    second_ = residual_[0];
    const bool added = spec.kind == CodecKind::kFp16 || spec.kind == CodecKind::kBf16 ||
                       spec.kind == CodecKind::kInt8 || spec.kind == CodecKind::kOneBit;
    cuts_ = added && ranks > 2 ? cuts_reference(kCount, ranks) : std::vector<size_t>{0, kCount};
    encodes_again_ = added && ranks > 2;
  }

  // Lists of prune are sent by parts.
  void cut_lists() { cuts_ = cuts_reference(kCount, residual_.size()); }

  Values mean_of(std::vector<Values> x) {
    Values mean(kCount, 0.0f);
    for (size_t part = 0; part + 1 < cuts_.size(); ++part) {
      for (size_t r = 0; r < x.size(); ++r) {
        const Values sent = told(x[r], residual_[r], part);
        for (size_t i = 0; i < sent.size(); ++i)
          mean[cuts_[part] + i] = r == 0 ? sent[i] : mean[cuts_[part] + i] + sent[i];
      }
      for (size_t i = cuts_[part]; i < cuts_[part + 1]; ++i) mean[i] /= static_cast<float>(x.size());
      if (!encodes_again_) continue;
      const Values again = told(mean, second_, part);
      std::copy(again.begin(), again.end(), mean.begin() + static_cast<std::ptrdiff_t>(cuts_[part]));
    }
    return mean;
  }

 private:
  // Returns what the message of a part of x says. Updates the residual of that part.
  Values told(const Values& x, Values& residual, size_t part) {
    const size_t begin = cuts_[part], end = cuts_[part + 1];
    Values v(x.begin() + static_cast<std::ptrdiff_t>(begin), x.begin() + static_cast<std::ptrdiff_t>(end));
    for (size_t i = 0; spec_.error_feedback && i < v.size(); ++i) v[i] += residual[begin + i];
    const auto shapes = cuts_.size() == 2 ? kShapes : part_shapes_reference(begin, end);
    const Values sent = round_trip(*make_codec(spec_, shapes), v);
    for (size_t i = 0; i < v.size(); ++i) residual[begin + i] = v[i] - sent[i];
    return sent;
  }

  CodecSpec spec_;
  std::vector<Values> residual_;
  Values second_;
  std::vector<size_t> cuts_;
  bool encodes_again_ = false;
};

struct Case {
  std::string word;
  int ranks;
  bool one_host;
};

class CompressedAllReduceTest : public testing::TestWithParam<Case> {};

// Compares four steps with the naive form. After two steps, new objects continue from the state of the
// first ones.
TEST_P(CompressedAllReduceTest, EqualsTheNaiveExchangeOnEveryRank) {
  const auto [word, ranks, one_host] = GetParam();
  const CodecSpec spec = parse_codec(word);
  NaiveExchange naive(spec, static_cast<size_t>(ranks));
  const bool long_lists = word.find("keep=0.6") != std::string::npos;
  if (long_lists) naive.cut_lists();
  std::vector<Values> expected;
  for (int step = 0; step < 4; ++step) {
    std::vector<Values> x;
    for (int r = 0; r < ranks; ++r) x.push_back(gradient(r, step));
    expected.push_back(naive.mean_of(x));
  }
  run_on_memory(ranks, one_host, [&](Group& group) {
    std::vector<float> state;
    for (int step = 0; step < 4; step += 2) {
      CompressedAllReduce exchange(group, spec, kShapes, kCount);
      if (step > 0) exchange.load_state(state);
      for (int i = step; i < step + 2; ++i) {
        Values data = gradient(group.rank(), i);
        exchange.apply(data);
        ASSERT_EQ(data, expected[static_cast<size_t>(i)]) << "step " << i << " rank " << group.rank();
      }
      state = exchange.state();
      EXPECT_EQ(exchange.residual_norm().has_value(), spec.error_feedback);
      if (long_lists) {
        EXPECT_EQ(exchange.scattered(), 2u);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CompressedAllReduceTest,
    testing::Values(Case{"none", 2, true}, Case{"none", 3, false}, Case{"fp16", 3, true},
                    Case{"bf16", 2, false}, Case{"bf16", 5, false}, Case{"int8", 3, true},
                    Case{"int8:feedback=on", 2, true}, Case{"int8:feedback=on", 8, true},
                    Case{"1bit", 3, true}, Case{"1bit", 3, false}, Case{"1bit", 7, false},
                    Case{"1bit:feedback=off", 4, true}, Case{"1bit", 1, true},
                    Case{"threshold:tau=0.05", 3, true}, Case{"threshold:tau=0.05", 2, false},
                    Case{"prune", 3, true}, Case{"prune:keep=0.2,feedback=off", 2, true},
                    Case{"prune:keep=0.6", 4, true}, Case{"prune:keep=0.6,feedback=off", 8, false},
                    Case{"prune+int8:keep=0.1", 3, true}, Case{"prune+bf16:keep=0.1", 2, false},
                    Case{"prune+fp16:keep=0.6", 4, true}),
    [](const auto& info) {
      std::string name = info.param.word + (info.param.one_host ? "_window_" : "_network_");
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name + std::to_string(info.param.ranks);
    });

// A state without the second residual, as earlier versions wrote it, is loaded.
TEST(CompressedAllReduceState, WithoutTheSecondResidualBeginsWithZeros) {
  run_on_memory(3, true, [](Group& group) {
    CompressedAllReduce exchange(group, parse_codec("1bit"), kShapes, kCount);
    const size_t longest = 63 * 16;  // 188 blocks of 16 values: 62, 63 and 63
    EXPECT_EQ(exchange.state().size(), kCount + longest);
    exchange.load_state(Values(kCount, 0.5f));
    Values expected(kCount, 0.5f);
    expected.resize(kCount + longest, 0.0f);
    EXPECT_EQ(exchange.state(), expected);
    EXPECT_THROW(exchange.load_state(Values(kCount + 1)), Error);
  });
}

// The second encoding loses nothing: over many steps the sum of the means approaches the mean of the sums.
TEST(CompressedAllReduceState, BothResidualsKeepWhatWasNotSent) {
  constexpr int kSteps = 200;
  run_on_memory(4, true, [](Group& group) {
    CompressedAllReduce exchange(group, parse_codec("1bit"), {}, kCount);
    Values sum(kCount, 0.0f), mean(kCount, 0.0f);
    for (int step = 0; step < kSteps; ++step) {
      Values data = gradient(group.rank(), 0);
      exchange.apply(data);
      for (size_t i = 0; i < kCount; ++i) sum[i] += data[i] / kSteps;
    }
    for (int r = 0; r < 4; ++r) {
      const Values g = gradient(r, 0);
      for (size_t i = 0; i < kCount; ++i) mean[i] += g[i] / 4;
    }
    EXPECT_LT(norm(minus(sum, mean)), 0.1 * norm(mean));
  });
}

// Compares five steps of PowerSGD with error feedback to algorithms 1 and 2 of its paper in fp64.
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
  run_on_memory(kRanks, true, [&](Group& group) {
    CompressedAllReduce exchange(group, parse_codec("lowrank:rank=2"), {{kRows, kCols}, {1, kBias}},
                                 kRows * kCols + kBias);
    for (int step = 0; step < 5; ++step) {
      Values data = gradient_of(group.rank(), step);
      exchange.apply(data);
      const Values& want = expected[static_cast<size_t>(step)];
      EXPECT_LT(norm(minus(data, want)), 1e-4 * norm(want)) << step;
      results[static_cast<size_t>(group.rank())].push_back(data);
    }
    const auto& residual = paper.residual[static_cast<size_t>(group.rank())].at;
    const Values state = exchange.state();  // Q, then the residual
    const Values kept(state.begin() + kRank * kCols, state.end());
    Values want(residual.begin(), residual.end());
    want.resize(kept.size(), 0.0f);
    EXPECT_LT(norm(minus(kept, want)), 1e-4 * norm(want));
  });
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

// lowrank as PCA gathers the factors of all ranks. The result has equal bits on all ranks and is near the
// naive mean.
TEST(CompressedAllReduce, PcaIsEqualOnAllRanks) {
  const std::vector<TensorShape> shapes{{40, 30, 0}, {1, 20, 4}};
  std::vector<Values> results(3);
  run_on_memory(3, true, [&](Group& group) {
    Values data = test_values(1224, static_cast<unsigned>(group.rank()));
    CompressedAllReduce(group, parse_codec("lowrank:form=pca,rank=3"), shapes, data.size()).apply(data);
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

// The growth of all ranks' traffic in one exchange.
struct Traffic {
  uint64_t sent = 0, received = 0, in_windows = 0;
};

Traffic traffic_of(const std::string& word, const std::vector<TensorShape>& shapes, size_t count, int ranks,
                   bool one_host) {
  std::vector<Traffic> of_ranks(static_cast<size_t>(ranks));
  run_on_memory(ranks, one_host, [&](Group& group) {
    CompressedAllReduce exchange(group, parse_codec(word), shapes, count);
    Values data = test_values(count, static_cast<unsigned>(group.rank()));
    barrier(group);
    const TrafficCount before = group.traffic();
    exchange.apply(data);
    const TrafficCount after = group.traffic();
    of_ranks[static_cast<size_t>(group.rank())] = {after.sent() - before.sent(),
                                                   after.received() - before.received(),
                                                   after.window_published - before.window_published};
    EXPECT_EQ(exchange.sent(), after.sent() - before.sent());
    EXPECT_NEAR(exchange.plain(), 8.0 * (ranks - 1) / ranks * static_cast<double>(count), 1e-6);
  });
  Traffic sum;
  for (const Traffic& t : of_ranks) {
    sum.sent += t.sent;
    sum.received += t.received;
    sum.in_windows += t.in_windows;
  }
  return sum;
}

// Windows and networks count equal bytes: those of docs/reference/codecs.md.
TEST(CompressedBytes, AreThoseOfTheFormulaInWindowsAndBetweenHosts) {
  constexpr size_t kValues = 60512;
  const std::vector<TensorShape> shapes{{200, 300, 0}, {1, 500, 12}};
  for (const std::string word :
       {"none", "fp16", "bf16", "int8", "1bit", "1bit:block=1024,feedback=off", "threshold:tau=0.05", "prune",
        "prune:keep=0.5", "prune+int8", "prune+fp16:keep=0.8", "dgc", "lowrank:rank=4", "lowrank+fp16:rank=4",
        "lowrank+bf16:rank=4", "lowrank:form=pca,rank=2,iterations=1"}) {
    for (int p = 2; p <= (thorough() ? 8 : 4); ++p) {
      SCOPED_TRACE(word + ", ranks " + std::to_string(p));
      const bool low_rank = word.starts_with("lowrank");
      const auto& known = low_rank ? shapes : std::vector<TensorShape>{};
      const Traffic window = traffic_of(word, known, kValues, p, true);
      const Traffic network = traffic_of(word, known, kValues, p, false);
      EXPECT_EQ(window.sent, bytes_by_formula(word, known, kValues, static_cast<size_t>(p)));
      EXPECT_EQ(window.sent, network.sent);
      EXPECT_EQ(window.received, window.sent);
      EXPECT_EQ(window.in_windows, window.sent);
      EXPECT_EQ(network.in_windows, 0u);
    }
  }
}

// With eight ranks an all-gather of fp16 would send twice as much as the plain all-reduce.
TEST(CompressedBytes, ShrinkWithEveryNumberOfRanks) {
  constexpr size_t kValues = 60512;
  for (int p = 2; p <= 8; ++p) {
    const auto plain = static_cast<double>(traffic_of("none", {}, kValues, p, true).sent);
    const auto ratio = [&](const char* word) {
      return plain / static_cast<double>(traffic_of(word, {}, kValues, p, true).sent);
    };
    EXPECT_GT(ratio("fp16"), 1.99) << p;
    EXPECT_GT(ratio("int8"), 3.9) << p;
    EXPECT_GT(ratio("1bit"), 24) << p;
    EXPECT_GT(ratio("prune:keep=0.001"), 80) << p;
  }
}

TEST(CompressedAllReduceErrors, AnotherCodecOnAnotherRankIsACommError) {
  for (const int ranks : {2, 3}) {
    try {
      run_on_memory(ranks, true, [&](Group& group) {
        Values data(1000, 1.0f);
        CompressedAllReduce(group, parse_codec(group.rank() == 0 ? "int8" : "bf16"), {}, data.size())
            .apply(data);
      });
      FAIL();
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(),
                  testing::HasSubstr(ranks == 2 ? "collectives differ" : "the splits of both must agree"));
    }
  }
}

// Sends the even elements in one message and the odd ones in the next, so it depends on the number of its
// messages. With kState, state() tells this number.
template <bool kState>
class Alternating final : public Codec {
 public:
  std::string name() const override { return "alternating"; }
  bool fixed_rate() const override { return true; }
  Combining combining() const override { return Combining::kAdded; }
  size_t encoded_bytes(size_t count) const override { return 4 * count; }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    for (size_t i = 0; i < in.size(); ++i) store_value(out.data() + 4 * i, i % 2 == sent_ % 2 ? in[i] : 0.0f);
    ++sent_;
    return 4 * in.size();
  }
  void decode(std::span<const std::byte> in, std::span<float> out) const override {
    for (size_t i = 0; i < out.size(); ++i) out[i] = load_value<float>(in.data() + 4 * i);
  }
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override {
    for (size_t i = 0; i < out.size(); ++i) out[i] += scale * load_value<float>(in.data() + 4 * i);
  }
  CodecState state() const override {
    return kState ? CodecState{{"sent", {static_cast<float>(sent_)}}} : CodecState{};
  }
  void load_state(const CodecState& state) override {
    if (kState) sent_ = static_cast<size_t>(state.at("sent").at(0));
  }

 private:
  size_t sent_ = 0;
};

// Every element is sent in one of two messages, so what error feedback keeps does not grow. The sum of what
// arrives is the sum of the means, but for the last residuals.
template <bool kState>
void expect_alternating_loses_nothing() {
  const auto added = std::make_shared<AddedCodec>(
      AddedCodec{{.name = "alternating", .error_feedback = true},
                 [](const CodecSpec&, const std::vector<TensorShape>&) -> std::unique_ptr<Codec> {
                   return std::make_unique<Alternating<kState>>();
                 }});
  CodecSpec spec;
  spec.kind = CodecKind::kAdded;
  spec.added = added;
  spec.error_feedback = true;
  constexpr int kSteps = 40;
  run_on_memory(3, true, [&](Group& group) {
    auto exchange = std::make_unique<CompressedAllReduce>(group, spec, kShapes, kCount);
    Values arrived(kCount, 0.0f);
    for (int step = 0; step < kSteps; ++step) {
      if (step == 21) {  // a resumed run
        const std::vector<float> state = exchange->state();
        exchange = std::make_unique<CompressedAllReduce>(group, spec, kShapes, kCount);
        exchange->load_state(state);
      }
      Values data(kCount, static_cast<float>(group.rank() + 1));
      exchange->apply(data);
      for (size_t i = 0; i < kCount; ++i) arrived[i] += data[i];
    }
    EXPECT_EQ(exchange->scattered(), kState ? 0u : uint64_t{kSteps - 21});
    for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(arrived[i], 2.0 * kSteps, 5) << i;
  });
}

TEST(CompressedAllReduceState, ACodecWhoseMessagesDifferLosesNothing) {
  expect_alternating_loses_nothing<false>();
  expect_alternating_loses_nothing<true>();
}

TEST(CompressedAllReduceErrors, OfNothingIsNothing) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool one_host : {true, false}) {
      run_on_memory(ranks, one_host, [](Group& group) {
        for (const char* word : {"none", "fp16", "int8", "1bit", "threshold", "prune", "dgc", "lowrank",
                                 "prune+int8", "lowrank+fp16"}) {
          CompressedAllReduce exchange(group, parse_codec(word), {{0, 0}}, 0);
          exchange.apply({});
          EXPECT_LE(exchange.sent(), static_cast<uint64_t>(group.size() - 1) * 16) << word;
        }
      });
    }
  }
}

}  // namespace
}  // namespace starling
