// Compares random-k, qsgd, terngrad and signsgd with their papers in fp64: values, means over many draws,
// variances and bytes. random_exchange_test.cc has the exchanges of several ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "starling/base/error.h"
#include "starling/codec/block_cut.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/error_feedback.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"
#include "starling/codec/random_codec.h"
#include "starling/codec/random_reference.h"

namespace starling {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint64_t kSeed = 11;

const std::vector<TensorShape> kShapes{{30, 25, 18}, {1, 30, 34}, {7, 100, 0}, {1, 1, 63}, {0, 5, 4}};

std::unique_ptr<Codec> make(const std::string& word, const std::vector<TensorShape>& shapes = {}) {
  CodecSpec spec = parse_codec(word);
  spec.seed = kSeed;
  return make_codec(spec, shapes);
}

Values message_at(Codec& codec, const Values& x, uint64_t step, uint64_t stream) {
  codec.random()->set_key(step, stream);
  return round_trip(codec, x);
}

// Values that are near 0.
Values values_of(size_t count, unsigned seed) {
  Values x = test_values(count, seed);
  for (size_t i = 0; i < count; i += 17) x[i] = 0;
  return x;
}

void expect_decodes_to(const Values& out, const std::vector<RoundedReference>& expected,
                       const std::string& what) {
  ASSERT_EQ(out.size(), expected.size());
  size_t either = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double bound = 1e-5 * (std::fabs(expected[i].value) + std::fabs(expected[i].other));
    if (expected[i].near) {
      ++either;
      ASSERT_TRUE(std::fabs(out[i] - expected[i].value) <= bound ||
                  std::fabs(out[i] - expected[i].other) <= bound)
          << what << ", value " << i;
    } else {
      ASSERT_NEAR(out[i], expected[i].value, bound) << what << ", value " << i;
    }
  }
  EXPECT_LE(either, 2 + out.size() / 1000) << what;
}

// The sums over many draws of one range.
struct Moments {
  std::vector<double> mean;  // of the decoded values
  double squares = 0;        // the mean of |decoded - target|²
};

Moments moments_of(Codec& codec, const Values& x, const std::vector<double>& target, int draws) {
  Moments found{std::vector<double>(x.size(), 0), 0};
  for (int t = 1; t <= draws; ++t) {
    const Values out = message_at(codec, x, static_cast<uint64_t>(t), 0);
    for (size_t i = 0; i < x.size(); ++i) {
      found.mean[i] += static_cast<double>(out[i]) / draws;
      found.squares += (out[i] - target[i]) * (out[i] - target[i]) / draws;
    }
  }
  return found;
}

std::vector<double> doubles(const Values& x) {
  return {x.begin(), x.end()};
}

double squares_of_values(const Values& x) {
  return norm(x) * norm(x);
}

// ---- the base class

TEST(RandomCodec, DrawsDependOnEachPartOfTheKey) {
  const Values x = test_values(2000, 1);
  for (const char* word : {"qsgd", "terngrad"}) {
    const auto codec = make(word);
    const Values first = message_at(*codec, x, 3, 1);
    EXPECT_EQ(message_at(*codec, x, 3, 1), first) << word;
    EXPECT_NE(message_at(*codec, x, 4, 1), first) << word;
    EXPECT_NE(message_at(*codec, x, 3, 2), first) << word;
    const auto other = make_codec(word);  // seed 0
    EXPECT_NE(message_at(*other, x, 3, 1), first) << word;
  }
}

TEST(RandomCodec, TheStateIsTheStep) {
  for (const char* word : {"random-k", "qsgd", "terngrad", "signsgd"}) {
    const auto codec = make(word);
    for (const uint64_t step :
         {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 24) + 1, (uint64_t{1} << 40) + 77}) {
      codec->random()->set_key(step, 9);
      const auto later = make(word);
      later->load_state(codec->state());
      EXPECT_EQ(later->random()->step(), step) << word;
    }
  }
}

TEST(RandomCodec, RefusesAStateThatIsNoStep) {
  const auto codec = make("qsgd");
  for (const CodecState& wrong :
       {CodecState{}, CodecState{{"residual", {1, 0}}}, CodecState{{"step", {1}}},
        CodecState{{"step", {0.5f, 0}}}, CodecState{{"step", {-1, 0}}}, CodecState{{"step", {kNan, 0}}},
        CodecState{{"step", {1, 0x1p24f}}}, CodecState{{"step", {1, 0}}, {"q/0", {1}}}}) {
    try {
      codec->load_state(wrong);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
      EXPECT_THAT(error.what(), HasSubstr("codec qsgd: the checkpoint does not have the step"));
    }
  }
}

TEST(RandomCodec, WrongSettingsAreRefused) {
  const auto error_of = [](const std::string& word) -> std::string {
    try {
      make_codec(word);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  for (const char* levels : {"0", "128", "2.5", "x", "", "-3"})
    EXPECT_THAT(error_of(std::string("qsgd:levels=") + levels),
                HasSubstr("is not a whole number from 1 to 127"));
  EXPECT_THAT(error_of("qsgd:norm=l3"), HasSubstr("codec qsgd: norm = 'l3' is not one of max, l2"));
  EXPECT_THAT(error_of("qsgd:block=12"), HasSubstr("a multiple of 8"));
  for (const char* clip : {"-1", "nan", "inf", "2x", ""})
    EXPECT_THAT(error_of(std::string("terngrad:clip=") + clip), HasSubstr("is not a number from 0 to"));
  for (const char* keep : {"0", "1.5", "-1"})
    EXPECT_THAT(error_of(std::string("random-k:keep=") + keep), HasSubstr("is not a part of the elements"));
  EXPECT_THAT(error_of("signsgd:block=8"), HasSubstr("'block=8' is not one of its settings"));
  for (const char* word : {"qsgd", "terngrad", "signsgd"}) {
    EXPECT_THAT(error_of(std::string(word) + ":feedback=on"), HasSubstr("feedback=on needs messages"));
    EXPECT_EQ(error_of(std::string(word) + ":feedback=off"), "");
  }
  for (const char* word : {"random-k", "qsgd", "terngrad", "signsgd"})
    EXPECT_THROW(parse_weight_codec(word), ConfigError) << word;
  EXPECT_EQ(parse_codec("random-k").keep, 0.1);
  EXPECT_EQ(parse_codec("prune").keep, 0.01);
}

// ---- qsgd

TEST(Qsgd, EqualsThePaper) {
  struct Setting {
    const char* word;
    int levels;
    bool max;
    size_t block;
  };
  for (const Setting& s :
       {Setting{"qsgd", 7, true, 256}, Setting{"qsgd:levels=1,norm=l2,block=64", 1, false, 64},
        Setting{"qsgd:levels=127,norm=l2", 127, false, 256}, Setting{"qsgd:levels=2,block=8", 2, true, 8}}) {
    for (const size_t count : {1, 7, 8, 9, 255, 256, 257, 3000}) {
      const Values x = values_of(count, 2);
      const auto codec = make(s.word);
      expect_decodes_to(
          message_at(*codec, x, 4, 2),
          qsgd_reference(x, s.levels, s.max, blocks_reference(count, s.block, {}), {kSeed, 4, 2}),
          s.word + std::to_string(count));
    }
    const Values x = values_of(total_size(kShapes), 3);
    const auto codec = make(s.word, kShapes);
    expect_decodes_to(
        message_at(*codec, x, 1, 0),
        qsgd_reference(x, s.levels, s.max, blocks_reference(x.size(), s.block, kShapes), {kSeed, 1, 0}),
        s.word);
  }
}

TEST(Qsgd, BytesAreThoseOfTheFormula) {
  for (const auto& [levels, bits] :
       std::map<int, size_t>{{1, 2}, {2, 3}, {3, 3}, {4, 4}, {7, 4}, {8, 5}, {127, 8}}) {
    const auto codec = make("qsgd:levels=" + std::to_string(levels));
    for (const size_t count : {1, 9, 256, 257, 1000}) {
      size_t bytes = 0;
      for (const auto& [begin, end] : blocks_reference(count, 256, {}))
        bytes += 4 + ((end - begin) * bits + 7) / 8;
      EXPECT_EQ(codec->encoded_bytes(count), bytes) << levels << " " << count;
      EXPECT_EQ(message_of(*codec, test_values(count, 1)).size(), bytes) << levels << " " << count;
    }
  }
  EXPECT_EQ(make("qsgd", kShapes)->encoded_bytes(total_size(kShapes)),
            3u * 4 + 375 + (4 + 15) + (3u * 4 + 350) + (4 + 1));
}

// Lemma 3.1 of the paper: the mean is the value, and the variance has a bound. A mean of T draws, each of
// standard deviation at most half a level, lies within 5 standard deviations.
TEST(Qsgd, IsUnbiasedAndItsVarianceHasTheBoundOfThePaper) {
  constexpr int kDraws = 4000;
  constexpr size_t kCount = 64;
  const Values x = values_of(kCount, 4);
  double largest = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(static_cast<double>(v)));
  for (const int levels : {1, 4, 20}) {
    for (const bool max : {true, false}) {
      const auto codec = make("qsgd:levels=" + std::to_string(levels) + (max ? ",norm=max" : ",norm=l2"));
      const Moments found = moments_of(*codec, x, doubles(x), kDraws);
      const double unit = (max ? largest : norm(x)) / levels;
      for (size_t i = 0; i < kCount; ++i)
        EXPECT_NEAR(found.mean[i], x[i], 5 * unit / 2 / std::sqrt(kDraws))
            << levels << " " << max << " " << i;
      const double n = kCount, s = levels;
      const double bound =
          max ? n * unit * unit / 4 : std::min(n / (s * s), std::sqrt(n) / s) * squares_of_values(x);
      EXPECT_LT(found.squares, bound) << levels << " " << max;
      EXPECT_GT(found.squares, 0);
    }
  }
}

TEST(Qsgd, WhatIsNotFiniteFillsItsBlock) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Values x = test_values(1024, 6);
    x[300] = bad;
    const Values out = round_trip(*make("qsgd"), x);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 256 == 1) << i;
  }
  EXPECT_EQ(round_trip(*make("qsgd"), Values{1e-40f, -1e-42f}), Values(2, 0.0f));
  EXPECT_EQ(round_trip(*make("qsgd"), Values{3e38f, -3e38f}), (Values{3e38f, -3e38f}));
  EXPECT_TRUE(std::isnan(round_trip(*make("qsgd:norm=l2"), Values{3e38f, -3e38f})[0]));
}

template <typename Message>
std::string refusal_of(const Codec& codec, const Message& message, size_t count) {
  Values out(count);
  try {
    codec.decode(message, out);
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST(Qsgd, ACodeBeyondTheLastLevelIsRefused) {
  const auto codec = make("qsgd");  // codes 0 to 14 of 4 bits
  auto message = message_of(*codec, Values{1, -1});
  EXPECT_EQ(message.size(), 5u);
  message[4] = std::byte{0x0e};
  EXPECT_EQ(decoded(*codec, message, 2), (Values{1, -1}));
  message[4] = std::byte{0xf0};
  EXPECT_THAT(refusal_of(*codec, message, 2), HasSubstr("has a level out of range"));
}

// ---- terngrad

TEST(TernGrad, EqualsThePaper) {
  struct Setting {
    const char* word;
    double clip;
    size_t block;
  };
  for (const Setting& s : {Setting{"terngrad", 2.5, 256}, Setting{"terngrad:clip=0", 0, 256},
                           Setting{"terngrad:clip=1,block=40", 1, 40}}) {
    for (const size_t count : {1, 3, 4, 5, 255, 256, 257, 3000}) {
      const Values x = values_of(count, 5);
      const auto codec = make(s.word);
      expect_decodes_to(message_at(*codec, x, 2, 7),
                        tern_grad_reference(x, s.clip, blocks_reference(count, s.block, {}), {kSeed, 2, 7}),
                        s.word + std::to_string(count));
    }
    const Values x = values_of(total_size(kShapes), 6);
    const auto codec = make(s.word, kShapes);
    expect_decodes_to(
        message_at(*codec, x, 1, 0),
        tern_grad_reference(x, s.clip, blocks_reference(x.size(), s.block, kShapes), {kSeed, 1, 0}), s.word);
  }
}

TEST(TernGrad, IsAQuarterOfAByteAndAScaleABlock) {
  const auto codec = make("terngrad");
  EXPECT_EQ(codec->encoded_bytes(1 << 20), (1u << 20) / 4 + 4u * 4096);
  EXPECT_EQ(codec->encoded_bytes(257), 64u + 4 + 1 + 4);
  EXPECT_EQ(message_of(*codec, test_values(257, 1)).size(), 73u);
}

// The mean is the clipped value, because theorem 1 of the paper is about clipped gradients. The variance of
// each value is |y| (s - |y|).
TEST(TernGrad, IsUnbiasedForTheClippedValues) {
  constexpr int kDraws = 4000;
  constexpr size_t kCount = 64;
  Values x = values_of(kCount, 7);
  x[20] = 3;  // far beyond 2.5 root mean squares
  x[40] = -2;
  const double sigma = norm(x) / std::sqrt(kCount);
  for (const double clip : {0.0, 2.5, 1.0}) {
    std::vector<double> y = doubles(x);
    double s = 0, variance = 0;
    for (double& v : y) {
      if (clip > 0) v = std::max(-clip * sigma, std::min(clip * sigma, v));
      s = std::max(s, std::fabs(v));
    }
    for (const double v : y) variance += std::fabs(v) * (s - std::fabs(v));
    EXPECT_EQ(y != doubles(x), clip > 0);
    const auto codec = make("terngrad:clip=" + std::to_string(clip));
    const Moments found = moments_of(*codec, x, y, kDraws);
    for (size_t i = 0; i < kCount; ++i)
      EXPECT_NEAR(found.mean[i], y[i], 5 * s / 2 / std::sqrt(kDraws)) << clip << " " << i;
    EXPECT_NEAR(found.squares, variance, 0.05 * variance) << clip;
  }
}

TEST(TernGrad, WhatIsNotFiniteFillsItsBlock) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Values x = test_values(1024, 6);
    x[800] = bad;
    const Values out = round_trip(*make("terngrad"), x);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 256 == 3) << i;
  }
  EXPECT_EQ(round_trip(*make("terngrad"), Values(20, -3.0f)), Values(20, -3.0f));
}

TEST(TernGrad, TheFourthCodeIsRefused) {
  const auto codec = make("terngrad");
  auto message = message_of(*codec, Values{1, 1, -1});
  EXPECT_EQ(static_cast<int>(message[4]), 1 + 4 * 1 + 16 * 2);
  message[4] = std::byte{3 << 2};
  EXPECT_THAT(refusal_of(*codec, message, 3), HasSubstr("has a code out of range"));
}

// ---- signsgd

TEST(SignSgd, SendsSignsAndDrawsThoseOfZeros) {
  for (const size_t count : {1, 7, 8, 9, 257, 3000}) {
    Values x = test_values(count, 8);
    for (size_t i = 0; i < count; i += 3) x[i] = i % 2 == 0 ? 0.0f : -0.0f;
    x[count - 1] = 1e-30f;
    const auto codec = make("signsgd");
    const Values out = message_at(*codec, x, 6, 3);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], sign_reference(x[i], i, {kSeed, 6, 3})) << i;
    EXPECT_EQ(codec->encoded_bytes(count), 4 + (count + 7) / 8);
  }
}

TEST(SignSgd, TheSignsOfZerosAreFair) {
  Values x(40000, 0.0f);
  x[0] = 1;
  const Values out = message_at(*make("signsgd"), x, 1, 0);
  EXPECT_NEAR(std::accumulate(out.begin(), out.end(), 0.0), 0, 5 * std::sqrt(40000));
}

TEST(SignSgd, ATensorOfZerosStaysAndPaddingDecodesToZeros) {
  const auto codec = make("signsgd", kShapes);
  Values x = test_values(total_size(kShapes), 9);
  std::fill(x.begin() + 768, x.begin() + 798, 0.0f);  // the second tensor
  const Values out = round_trip(*codec, x);
  const size_t signs = 94 + 4 + 88 + 1;
  EXPECT_EQ(codec->encoded_bytes(x.size()), signs + 4u * 4);
  for (size_t i = 0; i < x.size(); ++i) {
    const bool sent = i < 750 || (i >= 832 && i < 1533);
    ASSERT_EQ(out[i], sent ? sign_reference(x[i], i, {kSeed, 0, 0}) : 0.0) << i;
  }
}

TEST(SignSgd, WhatIsNotFiniteFillsItsTensor) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Values x = test_values(total_size(kShapes), 10);
    x[780] = bad;
    const Values out = round_trip(*make("signsgd", kShapes), x);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i >= 768 && i < 798) << i;
  }
}

TEST(SignSgd, AnotherHeadIsRefused) {
  const auto codec = make("signsgd");
  auto message = message_of(*codec, Values{1, -1});
  EXPECT_EQ(decoded(*codec, message, 2), (Values{1, -1}));
  store_value(message.data(), 2.0f);
  EXPECT_THAT(refusal_of(*codec, message, 2), HasSubstr("has a head that is not 0, 1 or NaN"));
}

// ---- random-k

TEST(RandomK, SendsTheValuesOfKPositionsUnchanged) {
  for (const size_t count : {1, 10, 64, 65, 1000, 70001}) {
    const Values x = test_values(count, 11);
    for (const double keep : {1e-9, 0.01, 0.1, 0.5, 1.0}) {
      const auto codec = make("random-k:keep=" + std::to_string(std::max(keep, 1e-6)));
      const auto k =
          static_cast<size_t>(std::max(1.0, std::ceil(std::max(keep, 1e-6) * static_cast<double>(count))));
      const Values out = message_at(*codec, x, 8, 1);
      EXPECT_EQ(codec->encoded_bytes(count), 4 * k);
      EXPECT_EQ(message_of(*codec, x).size(), 4 * k);
      const std::set<size_t> chosen = positions_reference(count, k, kSeed, 8);
      ASSERT_EQ(chosen.size(), k);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], chosen.contains(i) ? x[i] : 0.0f) << i;
    }
  }
}

// Every stream, and so every rank, has equal positions. Other steps have other positions.
TEST(RandomK, PositionsDependOnTheSeedAndTheStep) {
  const Values x = test_values(1000, 12);
  const auto codec = make("random-k"), other = make_codec("random-k");
  const Values first = message_at(*codec, x, 3, 0);
  EXPECT_EQ(message_at(*codec, x, 3, 5), first);
  EXPECT_NE(message_at(*codec, x, 4, 0), first);
  EXPECT_NE(message_at(*other, x, 3, 0), first);
}

// All ten pairs of five positions are equally frequent: within 5 standard deviations.
TEST(RandomK, EverySetOfPositionsIsEquallyLikely) {
  constexpr int kDraws = 5000;
  const auto codec = make("random-k:keep=0.4");
  std::map<std::vector<float>, int> counts;
  for (int t = 1; t <= kDraws; ++t)
    ++counts[message_at(*codec, Values(5, 1.0f), static_cast<uint64_t>(t), 0)];
  EXPECT_EQ(counts.size(), 10u);
  for (const auto& [set, count] : counts)
    EXPECT_NEAR(count, kDraws / 10.0, 5 * std::sqrt(kDraws * 0.1 * 0.9)) << testing::PrintToString(set);
}

// Without error feedback, n / k makes the message unbiased. Its variance is (n / k - 1) |x|².
TEST(RandomK, WithoutErrorFeedbackIsUnbiased) {
  constexpr int kDraws = 20000;
  constexpr size_t kCount = 50;
  const Values x = test_values(kCount, 13);
  const auto codec = make("random-k:keep=0.2,feedback=off");
  const Moments found = moments_of(*codec, x, doubles(x), kDraws);
  for (size_t i = 0; i < kCount; ++i)
    EXPECT_NEAR(found.mean[i], x[i], 5 * 2 * std::fabs(x[i]) / std::sqrt(kDraws)) << i;
  EXPECT_NEAR(found.squares, 4 * squares_of_values(x), 0.05 * 4 * squares_of_values(x));
}

// With error feedback nothing is multiplied. The message is a contraction: E |x - decoded|² = (1 - k/n) |x|².
TEST(RandomK, WithErrorFeedbackIsAContraction) {
  constexpr int kDraws = 20000;
  const Values x = test_values(50, 14);
  const auto codec = make("random-k:keep=0.2");
  const Moments found = moments_of(*codec, x, doubles(x), kDraws);
  EXPECT_NEAR(found.squares, 0.8 * squares_of_values(x), 0.02 * squares_of_values(x));
}

// The decoded sum is the sum of the inputs minus one residual, and the residual stays bounded.
TEST(RandomK, ErrorFeedbackLosesNothing) {
  constexpr size_t kCount = 600;
  const Values g = test_values(kCount, 15);
  const auto error_after = [&](int steps) {
    const auto codec = make("random-k");
    ErrorFeedback feedback(kCount);
    Values in(kCount, 0.0f), out(kCount, 0.0f);
    std::vector<std::byte> message(codec->encoded_bytes(kCount));
    for (int step = 1; step <= steps; ++step) {
      codec->random()->set_key(static_cast<uint64_t>(step), 0);
      const size_t bytes = feedback.encode(*codec, g, message);
      codec->decode_add(std::span(message).first(bytes), out);
      for (size_t i = 0; i < kCount; ++i) in[i] += g[i];
    }
    const Values residual(feedback.residual().begin(), feedback.residual().end());
    EXPECT_LT(norm(minus(minus(in, out), residual)), 1e-4 * norm(in));
    return norm(residual) / norm(in);
  };
  EXPECT_LT(error_after(320), 0.2 * error_after(20));
}

TEST(RandomK, WhatIsNotFiniteFillsTheMessage) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Values x = test_values(100, 16);
    const auto codec = make("random-k");
    const Values before = message_at(*codec, x, 1, 0);
    for (size_t at = 0; at < 100; at += 33) {
      Values broken = x;
      broken[at] = bad;
      const Values out = message_at(*codec, broken, 1, 0);
      for (size_t i = 0; i < 100; ++i) EXPECT_EQ(std::isnan(out[i]), before[i] != 0) << i;
    }
  }
}

}  // namespace
}  // namespace starling
