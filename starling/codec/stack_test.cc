// Tests stacks of two codecs, such as prune+int8 and lowrank+fp16: their words, their messages against naive
// references, and their all-reduce. Error feedback covers both codecs of a stack.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/compressed_all_reduce.h"
#include "starling/codec/low_rank_kernels.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/matrix_reference.h"
#include "starling/spec/codec_table.h"
#include "starling/testing/memory_ranks.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> words_in(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// ---- words

TEST(Stacks, AreThoseOfTheTable) {
  EXPECT_THAT(words_in(codec_stacks(false, " ")),
              testing::UnorderedElementsAre("prune+fp16", "prune+bf16", "prune+int8", "dgc+fp16", "dgc+bf16",
                                            "dgc+int8", "lowrank+fp16", "lowrank+bf16"));
  EXPECT_THAT(words_in(codec_stacks(true, " ")),
              testing::UnorderedElementsAre("prune+fp16", "prune+bf16", "prune+int8", "lowrank+fp16",
                                            "lowrank+bf16"));
  for (const std::string& word : words_in(codec_stacks(false, " "))) {
    const CodecSpec spec = parse_codec(word);
    EXPECT_EQ(name_of(spec), word);
    EXPECT_EQ(make_codec(spec, {{40, 30}})->name(), word);
    EXPECT_EQ(parse_codec(to_word(spec)), spec) << to_word(spec);
    EXPECT_TRUE(spec.error_feedback) << word;
    EXPECT_EQ(spec.momentum_correction, !word.starts_with("lowrank")) << word;
    EXPECT_EQ(first_codec(word), word.substr(0, word.find('+')));
  }
}

TEST(Stacks, HaveTheSettingsOfBothCodecs) {
  const CodecSpec spec = parse_codec("prune+int8:keep=0.02,block=64");
  EXPECT_EQ(spec.kind, CodecKind::kPrune);
  EXPECT_EQ(spec.values, CodecKind::kInt8);
  EXPECT_EQ(spec.keep, 0.02);
  EXPECT_EQ(spec.block, 64u);
  EXPECT_EQ(to_word(spec), "prune+int8:keep=0.02,correction=on,block=64,feedback=on");
  EXPECT_EQ(parse_codec("dgc+bf16").keep, 0.001);
  EXPECT_EQ(parse_codec("lowrank+fp16:rank=4,feedback=off").rank, 4);
  EXPECT_EQ(parse_weight_codec("lowrank+bf16").form, LowRankForm::kPca);
  EXPECT_FALSE(parse_weight_codec("prune+int8").error_feedback);
  EXPECT_NE(parse_codec("prune+int8"), parse_codec("prune"));
}

std::string refusal_of(const std::string& word) {
  try {
    parse_codec(word);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Stacks, WithoutASenseAreRefused) {
  EXPECT_THAT(refusal_of("int8+prune"),
              AllOf(HasSubstr("codec int8+prune: prune cannot encode the values of int8"),
                    HasSubstr("did you mean 'prune+int8'?"), HasSubstr("the stacks are")));
  for (const char* word : {"1bit+fp16", "threshold+int8", "random-k+fp16", "lowrank+int8", "prune+1bit",
                           "prune+prune", "prune+none", "none+fp16", "fp16+bf16", "qsgd+fp16", "dgc+qsgd"}) {
    const std::string text(word);
    const size_t plus = text.find('+');
    EXPECT_THAT(refusal_of(word),
                AllOf(HasSubstr("codec " + text + ": " + text.substr(plus + 1) +
                                " cannot encode the values of " + text.substr(0, plus)),
                      HasSubstr("the stacks are"), HasSubstr("prune+int8"), HasSubstr("lowrank+fp16")));
  }
  EXPECT_THAT(refusal_of("prune+int8+fp16"), HasSubstr("a stack has two codecs"));
  EXPECT_THAT(refusal_of("prune+int9"), AllOf(HasSubstr("no codec 'int9'"), HasSubstr("'int8'")));
  EXPECT_THAT(refusal_of("prune+"), HasSubstr("no codec ''"));
  EXPECT_THAT(refusal_of("+int8"), HasSubstr("no codec ''"));
  EXPECT_THAT(refusal_of("prune+fp16:block=64"), HasSubstr("'block=64' is not one of its settings"));
  EXPECT_THAT(refusal_of("prune+int8:block=12"),
              HasSubstr("codec prune+int8: block = '12' is not a multiple of 8"));
  EXPECT_THROW(parse_weight_codec("dgc+fp16"), ConfigError);
  EXPECT_THROW(parse_weight_codec("prune+int8:feedback=on"), ConfigError);
}

// ---- lists

// Returns the list of the values that prune sends, rounded by the second codec, at their places.
Values rounded_at(const Values& chosen, const std::vector<bool>& sent, const std::string& second,
                  size_t block) {
  Values list;
  for (size_t i = 0; i < chosen.size(); ++i)
    if (sent[i]) list.push_back(chosen[i]);
  const Values rounded = second == "int8"   ? int8_reference(list, block, {})
                         : second == "fp16" ? fp16_reference(list)
                                            : bf16_reference(list);
  Values out(chosen.size(), 0.0f);
  size_t next = 0;
  for (size_t i = 0; i < chosen.size(); ++i)
    if (sent[i]) out[i] = rounded[next++];
  return out;
}

TEST(PruneStack, EqualsTheReferenceAndItsFormula) {
  for (const size_t count : {1, 10, 1000, 70001}) {
    const Values x = test_values(count, 3);
    for (const double keep : {0.0005, 0.01, 0.3, 1.0}) {
      const auto k = std::max<size_t>(static_cast<size_t>(std::ceil(keep * static_cast<double>(count))), 1);
      const Values chosen = prune_reference(x, k);
      std::vector<bool> sent;
      for (const float v : chosen) sent.push_back(v != 0);
      const size_t gaps = gap_bytes_reference(chosen, 1);
      for (const auto& [second, bytes] : {std::pair<std::string, size_t>{"int8", k + 4 * ((k + 63) / 64)},
                                          {"fp16", 2 * k},
                                          {"bf16", 2 * k}}) {
        const std::string block = second == "int8" ? ",block=64" : "";
        const auto codec = make_codec(fmt::format("prune+{}:keep={}{}", second, keep, block));
        const auto message = message_of(*codec, x);
        ASSERT_EQ(decoded(*codec, message, count), rounded_at(chosen, sent, second, 64)) << second << count;
        EXPECT_EQ(message.size(), bytes + gaps) << second << " " << count << " " << keep;
        EXPECT_LE(message.size(), codec->encoded_bytes(count));
      }
    }
  }
}

TEST(PruneStack, StatesTheBoundOfItsValuesAndGaps) {
  // 1 % of 13,000 values: 130 gaps, of which 100 may exceed 128.
  EXPECT_EQ(make_codec("prune+int8")->encoded_bytes(13000), 130u + 4 + 230);
  EXPECT_EQ(make_codec("prune+int8:block=64")->encoded_bytes(13000), 130u + 3 * 4 + 230);
  EXPECT_EQ(make_codec("prune+fp16")->encoded_bytes(13000), 2u * 130 + 230);
  EXPECT_FALSE(make_codec("prune+fp16")->fixed_rate());
}

TEST(PruneStack, ANanFillsItsBlockOfTheValuesSent) {
  Values x = test_values(1000, 4);
  x[700] = std::numeric_limits<float>::quiet_NaN();
  const Values out = round_trip(*make_codec("prune+int8:keep=0.064,block=8"), x);
  EXPECT_TRUE(std::isnan(out[700]));
  EXPECT_EQ(std::count_if(out.begin(), out.end(), [](float v) { return std::isnan(v); }), 8);
}

TEST(PruneStack, HostileMessages) {
  const auto codec = make_codec("prune+fp16:keep=0.2");  // 2 of 10
  const auto refusal = [&](size_t head, std::initializer_list<int> bytes) -> std::string {
    std::vector<std::byte> bad(head);
    for (const int byte : bytes) bad.push_back(static_cast<std::byte>(byte));
    Values out(10);
    try {
      codec->decode(bad, out);
    } catch (const CommError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(4, {0, 8}), "");
  EXPECT_THAT(refusal(4, {0, 9}),
              HasSubstr("codec prune+fp16: a message of 6 bytes for 10 values has an index"));
  EXPECT_THAT(refusal(4, {0}), HasSubstr("ends before its last value"));
  EXPECT_THAT(refusal(3, {0, 0}), HasSubstr("ends before its last value"));
  EXPECT_THAT(refusal(4, {0, 0, 0}), HasSubstr("has bytes after"));
}

// The residual has the values that are not sent, and what the second codec rounded off the values that are.
TEST(PruneStack, FeedbackKeepsTheRoundingToo) {
  constexpr size_t kCount = 2000;
  const auto codec = make_codec("prune+int8:keep=0.05");
  ErrorFeedback feedback(kCount);
  std::vector<std::byte> message(codec->encoded_bytes(kCount));
  const Values x = test_values(kCount, 9);
  const size_t bytes = feedback.encode(*codec, x, message);
  const Values out = decoded(*codec, std::span(message).first(bytes), kCount);
  const Values expected = minus(x, out);
  EXPECT_EQ(Values(feedback.residual().begin(), feedback.residual().end()), expected);
  size_t rounded = 0;
  for (size_t i = 0; i < kCount; ++i) rounded += out[i] != 0 && feedback.residual()[i] != 0 ? 1 : 0;
  EXPECT_GT(rounded, 80u);  // of 100
}

// ---- low rank

constexpr size_t kRows = 50, kCols = 40, kBias = 60, kAll = kRows * kCols + kBias;
constexpr int kRank = 2;
const std::vector<TensorShape> kShapes{{kRows, kCols}, {1, kBias}};

Values gradient(int rank, int step) {
  return test_values(kAll, static_cast<unsigned>(10 * step + rank));
}

using Array = std::vector<double>;
using Rounding = Values (*)(const Values&);

Values not_rounded(const Values& x) {
  return x;
}

// One step of PowerSGD with error feedback in fp64. The ranks, and the owners of the parts, round its arrays.
class RoundedPowerSgd {
 public:
  // states: of each rank, as CompressedAllReduce::state() has them: Q, then the residual.
  RoundedPowerSgd(const std::vector<Values>& states, Rounding round) : round_(round) {
    q_ = transposed(matrix_of(states[0], kRank, kCols));
    for (const Values& state : states) {
      const Values residual(state.begin() + kRank * kCols, state.end());
      matrix_.push_back(matrix_of(residual, kRows, kCols));
      bias_.emplace_back(residual.end() - kBias, residual.end());
    }
  }

  Array step(const std::vector<Values>& gradients) {
    q_ = orthonormal_columns(q_);
    std::vector<Array> left, right;
    for (size_t k = 0; k < gradients.size(); ++k) {
      for (size_t i = 0; i < matrix_[k].at.size(); ++i) matrix_[k].at[i] += gradients[k][i];
      for (size_t i = 0; i < kBias; ++i) bias_[k][i] += gradients[k][kRows * kCols + i];
      left.push_back(transposed(product(matrix_[k], q_)).at);
      left.back().insert(left.back().end(), bias_[k].begin(), bias_[k].end());
    }
    const Array left_mean = mean_of(left);
    Matrix p(kRank, kRows);
    std::copy_n(left_mean.begin(), p.at.size(), p.at.begin());
    p = orthonormal_columns(transposed(p));
    for (const Matrix& m : matrix_) right.push_back(transposed(product(transposed(m), p)).at);
    const Array right_mean = mean_of(right);
    for (size_t k = 0; k < gradients.size(); ++k) {
      const Array sent = times(p, right[k]);
      for (size_t i = 0; i < sent.size(); ++i) matrix_[k].at[i] -= sent[i];
      for (size_t i = 0; i < kBias; ++i) bias_[k][i] -= left[k][kRank * kRows + i];
    }
    Array result = times(p, right_mean);
    result.insert(result.end(), left_mean.begin() + kRank * kRows, left_mean.end());
    return result;
  }

  // Returns the residual of a rank.
  Array residual(size_t rank) const {
    Array all = matrix_[rank].at;
    all.insert(all.end(), bias_[rank].begin(), bias_[rank].end());
    return all;
  }

 private:
  Array rounded(const Array& x) const {
    const Values out = round_(Values(x.begin(), x.end()));
    return {out.begin(), out.end()};
  }
  // Replaces the arrays by what their ranks contribute, and returns the rounded mean. The owner of a part
  // contributes the error of the second rounding, too.
  Array mean_of(std::vector<Array>& arrays) const {
    const size_t p = arrays.size(), part = (arrays[0].size() + p - 1) / p;
    Array sum(arrays[0].size(), 0.0);
    for (Array& a : arrays) {
      a = rounded(a);
      for (size_t i = 0; i < a.size(); ++i) sum[i] += a[i];
    }
    for (double& s : sum) s /= static_cast<double>(p);
    const Array mean = rounded(sum);
    for (size_t i = 0; i < sum.size(); ++i)
      arrays[i / part][i] += static_cast<double>(p) * (mean[i] - sum[i]);
    return mean;
  }
  // Returns P Qᵀ for a Q that is stored as vectors one after another.
  static Array times(const Matrix& p, const Array& q) {
    Matrix vectors(kRank, kCols);
    vectors.at = q;
    return product(p, vectors).at;
  }

  Rounding round_;
  Matrix q_{kCols, kRank};
  std::vector<Matrix> matrix_;
  std::vector<Array> bias_;
};

double distance(const Values& a, const Array& b) {
  double squares = 0;
  for (size_t i = 0; i < b.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

// What a run of several ranks had, by step and rank.
struct Recorded {
  std::vector<std::vector<Values>> results, states;  // states[0] is before the first step
};

constexpr int kSteps = 5;

// After three steps, new objects continue from the state of the first ones. A second run does not stop there
// and must have equal bits.
Recorded run_stack(const std::string& word, int ranks) {
  const auto p = static_cast<size_t>(ranks);
  Recorded run{std::vector(kSteps, std::vector<Values>(p)), std::vector(kSteps + 1, std::vector<Values>(p))};
  run_on_memory(ranks, ranks % 2 == 0, [&](Group& group) {
    const CodecSpec spec = parse_codec(word);
    const auto me = static_cast<size_t>(group.rank());
    CompressedAllReduce whole(group, spec, kShapes, kAll), first(group, spec, kShapes, kAll),
        second(group, spec, kShapes, kAll);
    run.states[0][me] = whole.state();
    for (int step = 0; step < kSteps; ++step) {
      Values data = gradient(group.rank(), step), again = data;
      whole.apply(data);
      if (step == 3) second.load_state(first.state());
      (step < 3 ? first : second).apply(again);
      ASSERT_EQ(again, data) << "step " << step;
      run.results[static_cast<size_t>(step)][me] = data;
      run.states[static_cast<size_t>(step) + 1][me] = whole.state();
    }
    EXPECT_EQ(second.state(), whole.state());
  });
  return run;
}

// Each step is simulated from the state before it, because a rounding that differs between fp32 and fp64
// would lead the steps that follow apart. Without the rounding, the simulation is more than twice as far
// away.
void expect_simulated(const std::string& word, Rounding round, double bound) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Recorded run = run_stack(word, ranks);
    for (size_t step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(fmt::format("{}, {} ranks, step {}", word, ranks, step));
      std::vector<Values> g;
      for (int r = 0; r < ranks; ++r) g.push_back(gradient(r, static_cast<int>(step)));
      RoundedPowerSgd naive(run.states[step], round), exact(run.states[step], not_rounded);
      const Array want = naive.step(g), unrounded = exact.step(g);
      const Values& found = run.results[step][0];
      EXPECT_LT(distance(found, want), bound * norm(found));
      EXPECT_GT(distance(found, unrounded), 2 * bound * norm(found));
      for (size_t r = 0; r < g.size(); ++r) {
        EXPECT_EQ(run.results[step][r], found);
        const Values& state = run.states[step + 1][r];
        const Values kept(state.begin() + kRank * kCols, state.end());
        EXPECT_LT(distance(kept, naive.residual(r)), bound * norm(kept));
      }
    }
  }
}

TEST(LowRankStack, EqualsTheSimulationAndResumes) {
  expect_simulated("lowrank+fp16:rank=2", fp16_reference, 1e-4);
  expect_simulated("lowrank+bf16:rank=2", bf16_reference, 8e-4);
}

// What arrived, and what the residuals of all ranks hold, is the sum of the gradients. Both roundings of Q
// and of the vector are in the residuals.
TEST(LowRankStack, LosesNothing) {
  constexpr int kRanks = 3, kMany = 30;
  for (const char* word : {"lowrank+fp16", "lowrank+bf16"}) {
    std::vector<Values> kept(kRanks);
    Values arrived(kAll, 0.0f), expected(kAll, 0.0f);
    run_on_memory(kRanks, true, [&](Group& group) {
      CompressedAllReduce exchange(group, parse_codec(word), kShapes, kAll);
      Values sum(kAll, 0.0f);
      for (int step = 0; step < kMany; ++step) {
        Values data = gradient(group.rank(), step);
        exchange.apply(data);
        for (size_t i = 0; i < kAll; ++i) sum[i] += data[i];
      }
      const std::vector<float> state = exchange.state();
      kept[static_cast<size_t>(group.rank())].assign(state.begin() + kRank * kCols, state.end());
      if (group.rank() == 0) arrived = sum;
    });
    for (int k = 0; k < kRanks; ++k) {
      for (int step = 0; step < kMany; ++step) {
        const Values g = gradient(k, step);
        for (size_t i = 0; i < kAll; ++i) expected[i] += g[i] / kRanks;
      }
      for (size_t i = 0; i < kAll; ++i) arrived[i] += kept[static_cast<size_t>(k)][i] / kRanks;
    }
    EXPECT_LT(norm(minus(arrived, expected)), 5e-6 * norm(expected)) << word;
  }
}

// A push to a server, and weights, are messages of 16-bit values.
TEST(LowRankStack, AMessageHasHalfTheBytes) {
  const Values x = gradient(0, 1);
  for (const char* form : {"power-sgd", "pca"}) {
    const auto plain = make_codec(fmt::format("lowrank:rank=3,form={}", form), kShapes);
    const auto stack = make_codec(fmt::format("lowrank+fp16:rank=3,form={}", form), kShapes);
    EXPECT_EQ(stack->encoded_bytes(kAll), 2 * (3 * (kRows + kCols) + kBias));
    const Values want = round_trip(*plain, x), out = round_trip(*stack, x);
    EXPECT_EQ(message_of(*stack, x).size(), stack->encoded_bytes(kAll));
    EXPECT_GT(norm(minus(out, want)), 1e-5 * norm(want)) << form;
    EXPECT_LT(norm(minus(out, want)), 1e-3 * norm(want)) << form;
    const Values bias(x.end() - kBias, x.end());
    EXPECT_EQ(Values(out.end() - kBias, out.end()), fp16_reference(bias)) << form;
  }
}

}  // namespace
}  // namespace starling
