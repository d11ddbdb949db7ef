// Compares the coded reduce-scatter with a naive simulation of its equations. Its bytes are compared with the
// lengths of the naive messages. The ranks are threads.
#include "starling/codec/coded_reduce_scatter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <limits>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/random_codec.h"
#include "starling/testing/memory_ranks.h"

namespace starling {
namespace {

constexpr size_t kCount = 3000;  // divisible by 1 to 6 ranks
constexpr uint64_t kSeed = 29, kRange = 3;
constexpr int kSteps = 6;
const std::vector<TensorShape> kShapes{{50, 40, 24}, {1, 900, 76}};

CodecSpec spec_of(const std::string& word) {
  CodecSpec spec = parse_codec(word);
  spec.seed = kSeed;
  return spec;
}

Values gradient(int rank, int step) {
  Values g = test_values(kCount, static_cast<unsigned>(100 * step + rank));
  for (size_t i = 0; i < kCount; ++i)
    if ((i >= 2000 && i < 2024) || i >= 2924) g[i] = 0;
  return g;
}

Values slice(const Values& x, size_t begin, size_t end) {
  return {x.begin() + static_cast<std::ptrdiff_t>(begin), x.begin() + static_cast<std::ptrdiff_t>(end)};
}

// Returns the shapes of a part, value by value: each value belongs to a tensor or to the padding behind it.
std::vector<TensorShape> part_shapes_reference(size_t begin, size_t end) {
  std::vector<TensorShape> result;
  size_t at = 0, last = kShapes.size();
  for (size_t t = 0; t < kShapes.size(); ++t) {
    for (size_t i = 0; i < kShapes[t].size() + kShapes[t].padding; ++i, ++at) {
      if (at < begin || at >= end) continue;
      const bool whole = i == 0 && at + kShapes[t].size() <= end;
      if (t != last) result.push_back(whole ? TensorShape{kShapes[t].rows, 0, 0} : TensorShape{1, 0, 0});
      last = t;
      if (i >= kShapes[t].size()) {
        ++result.back().padding;
      } else if (result.back().rows == 1 || i % kShapes[t].rows == 0) {
        ++result.back().cols;
      }
    }
  }
  return result;
}

// The equations in one thread, for messages of parts.
class NaiveParts {
 public:
  NaiveParts(CodecSpec spec, size_t ranks)
      : spec_(std::move(spec)), e_(ranks, Values(kCount, 0.0f)), f_(kCount, 0.0f), sent_(ranks) {}

  // Returns the mean of the whole range, part by part.
  Values mean_of(const std::vector<Values>& v, int step) {
    const size_t p = v.size(), share = kCount / p;
    Values mean;
    for (size_t r = 0; r < p; ++r) {
      Values sum(share, 0.0f);
      for (size_t k = 0; k < p; ++k) {
        size_t bytes = 0;
        const Values sent = told(v[k], e_[k], r, share, {static_cast<uint64_t>(step), k}, bytes);
        for (size_t i = 0; i < share; ++i) sum[i] = k == 0 ? sent[i] : sum[i] + sent[i];
        if (k != r) sent_[k] += bytes;
      }
      for (float& x : sum) x /= static_cast<float>(p);
      if (spec_.kind == CodecKind::kSignSgd) {
        Values whole(kCount, 0.0f);
        std::ranges::copy(sum, whole.begin() + static_cast<std::ptrdiff_t>(r * share));
        size_t bytes = 0;
        sum = told(whole, f_, r, share, {static_cast<uint64_t>(step), p}, bytes);
      }
      mean.insert(mean.end(), sum.begin(), sum.end());
    }
    return mean;
  }
  // The bytes that rank k has sent to other ranks in messages.
  size_t sent(int rank) const { return sent_[static_cast<size_t>(rank)]; }
  const Values& residual(int rank) const { return e_[static_cast<size_t>(rank)]; }

 private:
  struct Key {
    uint64_t step, stream;
  };

  // Returns what the message of part r of x says, and its bytes. Updates the residual of that part.
  Values told(const Values& x, Values& residual, size_t r, size_t share, const Key& key, size_t& bytes) {
    const size_t begin = r * share;
    Values v = slice(x, begin, begin + share);
    for (size_t i = 0; spec_.error_feedback && i < share; ++i) v[i] += residual[begin + i];
    CodecSpec of_part = spec_;
    of_part.seed = key_of(kSeed, kRange, r);
    const auto codec = make_codec(of_part, part_shapes_reference(begin, begin + share));
    if (RandomCodec* random = codec->random()) {
      random->set_key(key.step, key.stream);
    } else if (codec->stepped() != nullptr) {
      codec->stepped()->set_step(key.step);
    }
    const auto message = message_of(*codec, v);
    bytes = message.size();
    const Values sent = decoded(*codec, message, share);
    for (size_t i = 0; i < share; ++i) residual[begin + i] = v[i] - sent[i];
    return sent;
  }

  CodecSpec spec_;
  std::vector<Values> e_;
  Values f_;
  std::vector<size_t> sent_;
};

struct Case {
  std::string word;
  int ranks;
  bool one_host;
};

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.word + (info.param.one_host ? "_window_" : "_network_");
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name + std::to_string(info.param.ranks);
}

class CodedReduceScatterTest : public testing::TestWithParam<Case> {};

// Compares each step with the naive form. After half of the steps, new objects continue from the state of the
// first ones.
TEST_P(CodedReduceScatterTest, EqualsTheEquationsOnEveryOwner) {
  const auto [word, ranks, one_host] = GetParam();
  const CodecSpec spec = spec_of(word);
  const auto p = static_cast<size_t>(ranks);
  NaiveParts naive(spec, p);
  std::vector<Values> expected;
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<Values> x;
    for (int r = 0; r < ranks; ++r) x.push_back(gradient(r, step));
    expected.push_back(naive.mean_of(x, step));
  }
  const bool lists = !make_codec(spec, kShapes)->fixed_rate();
  run_on_memory(ranks, one_host, [&](Group& group) {
    const size_t share = kCount / p, begin = static_cast<size_t>(group.rank()) * share;
    std::vector<float> state;
    uint64_t sent = 0;
    for (int first = 1; first <= kSteps; first += kSteps / 2) {
      CodedReduceScatter exchange(group, spec, kShapes, kCount, kRange);
      if (first > 1) exchange.load_state(state);
      for (int step = first; step < first + kSteps / 2; ++step) {
        Values data = gradient(group.rank(), step), mean(share);
        exchange.apply(static_cast<uint64_t>(step), data, mean);
        ASSERT_EQ(mean, slice(expected[static_cast<size_t>(step - 1)], begin, begin + share))
            << "step " << step << " rank " << group.rank();
      }
      state = exchange.state();
      sent += exchange.sent();
      ASSERT_EQ(exchange.residual_norm().has_value(), spec.error_feedback);
      EXPECT_EQ(state.size(), spec.error_feedback ? 3 + kCount : 0);
    }
    if (spec.error_feedback) {
      EXPECT_EQ(Values(state.begin() + 3, state.end()), naive.residual(group.rank()));
    }
    EXPECT_EQ(sent, naive.sent(group.rank()) + (lists ? kSteps * 8 * (p - 1) : 0));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Parts, CodedReduceScatterTest,
    testing::Values(Case{"none", 3, true}, Case{"fp16", 3, true}, Case{"bf16", 2, false},
                    Case{"int8", 2, true}, Case{"int8:feedback=on", 4, false}, Case{"1bit", 1, true},
                    Case{"1bit", 2, true}, Case{"1bit", 3, false}, Case{"1bit", 4, true},
                    Case{"1bit:feedback=off", 3, true}, Case{"threshold:tau=0.05", 2, false},
                    Case{"threshold:tau=0.05", 4, true}, Case{"prune:keep=0.1", 1, true},
                    Case{"prune:keep=0.1", 3, true}, Case{"prune:keep=0.3,feedback=off", 2, false},
                    Case{"prune+int8:keep=0.1", 4, true}, Case{"dgc:keep=0.01,warmup=4", 3, true},
                    Case{"random-k", 2, true}, Case{"random-k:feedback=off", 4, false}, Case{"qsgd", 3, true},
                    Case{"terngrad", 4, true}, Case{"signsgd", 1, true}, Case{"signsgd", 2, true},
                    Case{"signsgd", 3, false}, Case{"signsgd", 4, true}),
    name_of_case);

class WholeReduceScatterTest : public testing::TestWithParam<Case> {};

// Messages of these codecs stand for the whole range. An owner gets its part of the mean of the all-reduce,
// with the bytes of the all-reduce, also after a restart.
TEST_P(WholeReduceScatterTest, IsAPartOfTheMeanOfTheAllReduce) {
  const auto [word, ranks, one_host] = GetParam();
  const CodecSpec spec = spec_of(word);
  run_on_memory(ranks, one_host, [&](Group& group) {
    const size_t share = kCount / static_cast<size_t>(ranks),
                 begin = static_cast<size_t>(group.rank()) * share;
    CompressedAllReduce reference(group, spec, kShapes, kCount);
    std::vector<float> state;
    uint64_t sent = 0;
    for (int first = 1; first <= kSteps; first += kSteps / 2) {
      CodedReduceScatter exchange(group, spec, kShapes, kCount, kRange);
      if (first > 1) exchange.load_state(state);
      for (int step = first; step < first + kSteps / 2; ++step) {
        Values whole = gradient(group.rank(), step), data = whole, mean(share);
        reference.apply(whole);
        exchange.apply(static_cast<uint64_t>(step), data, mean);
        ASSERT_EQ(mean, slice(whole, begin, begin + share)) << "step " << step << " rank " << group.rank();
      }
      state = exchange.state();
      sent += exchange.sent();
      EXPECT_LE(exchange.formula() * kSteps / 2, static_cast<double>(exchange.sent()));
    }
    EXPECT_EQ(sent, reference.sent());
    EXPECT_EQ(state.empty(), reference.state().empty());
  });
}

INSTANTIATE_TEST_SUITE_P(Codecs, WholeReduceScatterTest,
                         testing::Values(Case{"lowrank", 2, true}, Case{"lowrank", 3, false},
                                         Case{"lowrank:feedback=off", 4, true},
                                         Case{"lowrank:form=pca", 3, true}, Case{"lowrank+bf16", 4, false}),
                         name_of_case);

// The formula is exact if the rate is fixed, and a bound if it varies. The heads of signsgd differ between
// the parts, so the formula is the mean over the ranks.
TEST(CodedReduceScatter, SendsTheBytesOfTheFormula) {
  for (const int ranks : {2, 3, 4, 5, 6, 8}) {
    const auto p = static_cast<size_t>(ranks);
    const size_t count = kCount / p * p;
    for (const char* word : {"fp16", "int8", "1bit", "random-k", "qsgd", "terngrad", "signsgd"}) {
      std::vector<uint64_t> sent(p);
      std::vector<double> formula(p);
      run_on_memory(ranks, ranks % 2 == 0, [&](Group& group) {
        CodedReduceScatter exchange(group, spec_of(word), {}, count, kRange);
        Values data = gradient(group.rank(), 1), mean(count / p);
        data.resize(count);
        exchange.apply(1, data, mean);
        sent[static_cast<size_t>(group.rank())] = exchange.sent();
        formula[static_cast<size_t>(group.rank())] = exchange.formula();
      });
      double sum = 0;
      for (const uint64_t bytes : sent) sum += static_cast<double>(bytes);
      for (const double bytes : formula)
        EXPECT_NEAR(bytes, sum / ranks, 1e-6) << word << " on " << ranks << " ranks";
    }
  }
  constexpr int kRanks = 4;
  run_on_memory(kRanks, false, [&](Group& group) {
    CodedReduceScatter exchange(group, spec_of("fp16"), kShapes, kCount, kRange);
    EXPECT_EQ(exchange.formula(), 3.0 * 2 * kCount / kRanks);
    CodedReduceScatter lists(group, spec_of("prune:keep=0.1"), kShapes, kCount, kRange);
    Values data = gradient(group.rank(), 1), mean(kCount / kRanks);
    lists.apply(1, data, mean);
    EXPECT_LE(static_cast<double>(lists.sent()), lists.formula());
  });
}

// Nothing is lost: the means of all steps and the residuals add up to the gradients.
TEST(CodedReduceScatter, TheResidualsHoldWhatWasNotSent) {
  constexpr int kRanks = 3, kMany = 40;
  constexpr size_t kShare = kCount / kRanks;
  for (const char* word : {"1bit", "prune:keep=0.1", "threshold:tau=0.02", "random-k"}) {
    std::vector<std::vector<double>> lacks(kRanks, std::vector<double>(kCount, 0));
    std::vector<Values> told(kRanks);
    run_on_memory(kRanks, true, [&](Group& group) {
      const auto rank = static_cast<size_t>(group.rank());
      CodedReduceScatter exchange(group, spec_of(word), kShapes, kCount, kRange);
      std::vector<double> means(kShare, 0);
      for (int step = 1; step <= kMany; ++step) {
        Values data = gradient(group.rank(), step), mean(kShare);
        for (size_t i = 0; i < kCount; ++i) lacks[rank][i] += data[i];
        exchange.apply(static_cast<uint64_t>(step), data, mean);
        for (size_t i = 0; i < kShare; ++i) means[i] += kRanks * static_cast<double>(mean[i]);
      }
      const std::vector<float> state = exchange.state();
      for (size_t i = 0; i < kCount; ++i) lacks[rank][i] -= state[3 + i];
      told[rank].assign(means.begin(), means.end());
    });
    for (size_t i = 0; i < kCount; ++i) {
      double gradients = 0;
      for (const auto& rank : lacks) gradients += rank[i];
      ASSERT_NEAR(told[i / kShare][i % kShare], gradients, 1e-4) << word << " " << i;
    }
  }
}

// Messages of two ranges of a step draw different numbers.
TEST(CodedReduceScatter, RangesHaveTheirOwnDraws) {
  run_on_memory(2, true, [](Group& group) {
    const auto mean_of = [&](uint64_t range) {
      CodedReduceScatter exchange(group, spec_of("random-k:feedback=off"), {}, kCount, range);
      Values data(kCount, 1.0f), mean(kCount / 2);
      exchange.apply(1, data, mean);
      return mean;
    };
    EXPECT_EQ(mean_of(0), mean_of(0));
    EXPECT_NE(mean_of(0), mean_of(1));
  });
}

// A NaN of any rank reaches the owner of its part.
TEST(CodedReduceScatter, DeliversWhatIsNotFinite) {
  for (const char* word : {"fp16", "int8", "1bit", "prune", "random-k", "signsgd", "lowrank"}) {
    run_on_memory(3, true, [&](Group& group) {
      CodedReduceScatter exchange(group, spec_of(word), kShapes, kCount, kRange);
      Values data = gradient(group.rank(), 1), mean(kCount / 3);
      if (group.rank() == 0) data[2500] = std::numeric_limits<float>::quiet_NaN();
      exchange.apply(1, data, mean);
      const bool finite = std::ranges::all_of(mean, [](float x) { return std::isfinite(x); });
      if (group.rank() == 2) {
        EXPECT_FALSE(finite) << word;
      }
    });
  }
}

TEST(CodedReduceScatter, RefusesTheStateOfAnotherRun) {
  std::vector<float> of_two;
  run_on_memory(2, true, [&](Group& group) {
    CodedReduceScatter exchange(group, spec_of("1bit"), kShapes, kCount, kRange);
    if (group.rank() == 0) of_two = exchange.state();
    std::vector<float> state = exchange.state();
    exchange.load_state(state);
    ++state[1];  // a range that has one value more
    EXPECT_THROW(exchange.load_state(state), Error);
    EXPECT_THROW(exchange.load_state({}), Error);
    CodedReduceScatter keeps_nothing(group, spec_of("fp16"), kShapes, kCount, kRange);
    EXPECT_TRUE(keeps_nothing.state().empty());
    keeps_nothing.load_state({});
    EXPECT_THROW(keeps_nothing.load_state(state), Error);
  });
  run_on_memory(3, true, [&](Group& group) {
    CodedReduceScatter exchange(group, spec_of("1bit"), kShapes, kCount, kRange);
    try {
      exchange.load_state(of_two);
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
      EXPECT_THAT(error.what(), testing::HasSubstr("from 2 ranks"));
    }
  });
}

}  // namespace
}  // namespace starling
